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
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, in case the orderly end hangs after the
	// first.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
