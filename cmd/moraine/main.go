// Command moraine is the whole of Moraine in one binary: the servers, the cluster on one
// machine, and the commands that people and scripts use.
//
// This package is wiring. It reads flags, the environment and the settings file, picks the
// real implementation behind every interface, and turns errors into exit codes. It decides
// nothing about bytes.
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
