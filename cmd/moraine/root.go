package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes. They mean the same for every command.
const (
	exitFine     = 0
	exitFailed   = 1
	exitWrongUse = 2
	exitDegraded = 3 // `cluster status` and `demo`: the cluster works, with less protection than promised; `fsck`: it found something
)

// app is what the commands of one invocation share.
type app struct {
	out, err io.Writer
	args     []string // the command line
	global   globalFlags
}

// globalFlags are the flags that every command has.
type globalFlags struct {
	endpoint string
	certs    string
	identity string
	mode     string
	insecure bool
	json     bool
	logLevel string
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	a := &app{out: out, err: errOut, args: args}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			printError(errOut, exit.err)
		}
		return exit.code
	}
	if isInterrupt(ctx, err) {
		fmt.Fprintln(errOut, "moraine: interrupted")
		return exitFailed
	}
	printError(errOut, err)
	if isWrongUse(err) {
		return exitWrongUse
	}
	return exitFailed
}

// printError writes err for a person, a line for each failure.
func printError(w io.Writer, err error) {
	for _, line := range errorLines(err) {
		fmt.Fprintf(w, "moraine: %s\n", line)
	}
}

// exitError ends the process with its own exit code; err may be nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func isWrongUse(err error) bool {
	var w *wrongUse
	return errors.As(err, &w)
}

// defaultLogLevel is the log level of servers.
const defaultLogLevel = "info"

// Groups of commands in `moraine --help`.
const (
	groupFiles   = "files"
	groupCluster = "cluster"
	groupServers = "servers"
)

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "moraine",
		Short: "A tiered store for the checkpoints and datasets of AI training clusters",
		Long: `Moraine keeps the checkpoints and datasets of AI training clusters in the fastest place that
the requested durability allows: RAM of other nodes, NVMe (erasure coded), or an object
store.

Write a file of a cluster as moraine://HOST[,HOST...]/PATH, or as moraine:///PATH where
--endpoint (MORAINE_ENDPOINT) names the hosts. Sizes are in IEC units (4MiB, 1GiB), in input
and output.

Exit codes: 0 success, 1 failure, 2 wrong use, 3 degraded ("cluster status") or findings
("fsck").`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return applySettings(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: groupFiles, Title: "Files and checkpoints:"},
		&cobra.Group{ID: groupCluster, Title: "The cluster:"},
		&cobra.Group{ID: groupServers, Title: "Servers:"},
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("%v; see `%s --help`", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.global.endpoint, "endpoint", "", "metadata servers, HOST[:PORT],...")
	f.StringVar(&a.global.certs, "certs", "", "directory with ca.crt and this program's certificate")
	f.StringVar(&a.global.identity, "identity", "", "name of the certificate in --certs (NAME.crt, "+
		"NAME.key); default: the only one there")
	f.StringVar(&a.global.mode, "mode", "secure", "secure (TLS for all) or crc (authenticated; "+
		"payloads in clear, with checksums); the whole cluster must use the same")
	f.BoolVar(&a.global.insecure, "insecure", false, "no certificates at all: anybody who reaches the "+
		"port may do anything")
	f.BoolVar(&a.global.json, "json", false, "print JSON, one object a line")
	f.StringVar(&a.global.logLevel, "log-level", defaultLogLevel, "debug, info, warn or error; logs go "+
		"to standard error (commands other than servers log only with this flag)")
	f.String("config", "", "settings file in YAML (default "+defaultSettingsFile+", if it exists)  "+
		"[MORAINE_CONFIG]")
	root.AddCommand(a.commands()...)
	root.InitDefaultHelpCmd()
	root.SetHelpCommandGroupID(groupCluster)
	root.SetCompletionCommandGroupID(groupCluster)
	addExamples(root)
	teachHelp(root)
	wrapArgs(root)
	return root
}

// wrapArgs turns every error about arguments into a wrong use that names the command's
// help.
func wrapArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				if strings.Contains(err.Error(), "arg(s)") { // cobra's count; the form says more
					return usageError("%s; the form is `%s`; see `%s --help`", argumentCount(args), strings.TrimSuffix(c.UseLine(), " [flags]"), c.CommandPath())
				}
				return usageError("%v; see `%s --help`", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

// argumentCount says how many arguments a command got where it takes another number.
func argumentCount(args []string) string {
	switch len(args) {
	case 0:
		return "arguments are missing"
	case 1:
		return "there is 1 argument, but the command takes another number"
	default:
		return fmt.Sprintf("there are %d arguments, but the command takes another number", len(args))
	}
}

// commandLog returns the logger of a command that a person waits for. Its result says all
// that matters, so it logs only where a flag sets a level.
func (a *app) commandLog() (*slog.Logger, error) {
	if a.global.logLevel == defaultLogLevel {
		return slog.New(slog.DiscardHandler), nil
	}
	return a.log()
}

// log returns the logger that servers use.
func (a *app) log() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.global.logLevel)); err != nil {
		return nil, usageError("--log-level %q: write debug, info, warn or error", a.global.logLevel)
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level})), nil
}
