package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/settings"
	"github.com/spf13/cobra"
)

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	env := &cli.Env{Out: out, Err: errOut, Args: args}
	root := newRootCommand(env)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return cli.ExitFine
	}
	var exit *cli.ExitError
	if errors.As(err, &exit) {
		if exit.Err != nil {
			printError(errOut, exit.Err)
		}
		return exit.Code
	}
	if cli.IsInterrupt(ctx, err) {
		fmt.Fprintln(errOut, "moraine: interrupted")
		return cli.ExitFailed
	}
	printError(errOut, err)
	if cli.IsWrongUse(err) {
		return cli.ExitWrongUse
	}
	return cli.ExitFailed
}

// printError writes err for a person, a line for each failure.
func printError(w io.Writer, err error) {
	for _, line := range cli.ErrorLines(err) {
		fmt.Fprintf(w, "moraine: %s\n", line)
	}
}

func newRootCommand(env *cli.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "moraine",
		Short: "A tiered store for the checkpoints and datasets of AI training clusters",
		Long: `Moraine keeps the checkpoints and datasets of AI training clusters in the fastest place that
the requested durability allows. That is RAM of other nodes, NVMe (erasure coded), or an
object store.

Write a file of a cluster as moraine://HOST[,HOST...]/PATH, or as moraine:///PATH where
--endpoint (MORAINE_ENDPOINT) names the hosts. Sizes are in IEC units (4MiB, 1GiB), in input
and output.

Exit codes: 0 success, 1 failure or a difference ("ckpt diff"), 2 wrong use, 3 degraded
("cluster status") or findings ("fsck").`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return settings.Apply(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: cli.GroupFiles, Title: "Files and checkpoints:"},
		&cobra.Group{ID: cli.GroupCluster, Title: "The cluster:"},
		&cobra.Group{ID: cli.GroupServers, Title: "Servers:"},
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.UsageError("%v; see `%s --help`", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&env.Global.Endpoint, "endpoint", "", "metadata servers, HOST[:PORT],...")
	f.StringVar(&env.Global.Certs, "certs", "", "directory with ca.crt and this program's certificate")
	f.StringVar(&env.Global.Identity, "identity", "", "name of the certificate in --certs (NAME.crt, "+
		"NAME.key); default: the only one there")
	f.StringVar(&env.Global.Mode, "mode", "secure", "secure (TLS for all) or crc (authenticated; "+
		"payloads in clear, with checksums); the whole cluster must use the same")
	f.BoolVar(&env.Global.Insecure, "insecure", false, "no certificates at all: anybody who reaches the "+
		"port may do anything")
	f.BoolVar(&env.Global.JSON, "json", false, "print JSON, one object a line")
	f.StringVar(&env.Global.LogLevel, "log-level", cli.DefaultLogLevel, "debug, info, warn or error; logs go "+
		"to standard error (commands other than servers log only with this flag)")
	f.String("config", "", "settings file in YAML (default "+settings.DefaultSettingsFile+", if it exists)  "+
		"[MORAINE_CONFIG]")
	root.AddCommand(commands(env)...)
	root.InitDefaultHelpCmd()
	root.SetHelpCommandGroupID(cli.GroupCluster)
	root.SetCompletionCommandGroupID(cli.GroupCluster)
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
					return cli.UsageError("%s; the form is `%s`; see `%s --help`", argumentCount(args), strings.TrimSuffix(c.UseLine(), " [flags]"), c.CommandPath())
				}
				return cli.UsageError("%v; see `%s --help`", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

// argumentCount says how many arguments a command got, for an error about their number.
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
