/* freeze MICROSECONDS THREAD ADDRESS: stop a thread for up to so long whenever it comes to an address, as a busy machine
 * might. By a hardware breakpoint (x86-64), which is the thread's own.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RESUME = 0x10000, ENABLE = 1 };

int main(int count, char **words) {
    if (count != 4) return 2;
    int most = atoi(words[1]), thread = atoi(words[2]);
    unsigned long address = strtoul(words[3], NULL, 0);
    srand(thread);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0)) return perror("ptrace"), 1;
    for (;;) {
        int status;
        if (waitpid(thread, &status, __WALL) < 0) {
            if (errno == EINTR) continue;
            return 0; /* it has ended */
        }
        if (!WIFSTOPPED(status)) return 0;
        int signal = WSTOPSIG(status);
        if (status >> 16) { /* the stop that was asked for */
            signal = 0;
            if (ptrace(PTRACE_POKEUSER, thread, offsetof(struct user, u_debugreg[0]), address) ||
                ptrace(PTRACE_POKEUSER, thread, offsetof(struct user, u_debugreg[7]), ENABLE))
                return perror("breakpoint"), 1;
        } else if (signal == SIGTRAP) {
            signal = 0;
            usleep(rand() % most);
            struct user_regs_struct registers;
            ptrace(PTRACE_GETREGS, thread, 0, &registers);
            registers.eflags |= RESUME; /* over the breakpoint */
            ptrace(PTRACE_SETREGS, thread, 0, &registers);
        }
        ptrace(PTRACE_CONT, thread, 0, signal);
    }
}
