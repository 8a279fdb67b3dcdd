from .call import launch as launch
