// Command moraine is the whole of Moraine in one binary: the servers, the cluster on one
// machine, and the commands that people and scripts use.
//
// This package has the root command, its help and its examples, and turns errors into exit
// codes. The commands of each area are in a package below internal. They are wiring: they
// read flags, pick the real implementation behind every interface, and print.
//
// One path through it: main calls run with the command line -> the root command applies the
// environment and the settings file (package settings) -> the command runs -> run prints its
// error and returns the exit code.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/mountcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, in case the orderly end hangs after the
	// first.
	context.AfterFunc(ctx, stop)
	if mountcmd.IsHelperCall(os.Args) {
		os.Exit(runHelper(ctx, os.Args, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// runHelper mounts for mount(8), and returns the exit code that it expects.
func runHelper(ctx context.Context, argv []string, out, errOut io.Writer) int {
	command, _, err := newRootCommand(&cli.Env{Out: out, Err: errOut}).Find([]string{"mount"})
	if err == nil {
		argv, err = mountcmd.HelperArgs(command, argv)
	}
	if err != nil {
		printError(errOut, err)
		return mountcmd.HelperExit(cli.ExitWrongUse)
	}
	if argv == nil {
		return mountcmd.HelperExit(cli.ExitFine)
	}
	return mountcmd.HelperExit(run(ctx, argv, out, errOut))
}
