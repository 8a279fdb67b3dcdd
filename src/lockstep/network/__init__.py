"""How hosts and ranks find each other and talk; standard library only."""
