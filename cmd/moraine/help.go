package main

import (
	"fmt"
	"strings"

	"github.com/morainefs/moraine/cmd/moraine/internal/settings"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageTemplate is cobra's. flagUsages writes its flags, so that --help shows the
// environment variable and the settings key of each flag.
const usageTemplate = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $cmds}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help")))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if not .AllChildCommandsHaveGroup}}

Other commands:{{range $cmds}}{{if (and (eq .GroupID "") (or .IsAvailableCommand (eq .Name "help")))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags  [environment variable, key of the settings file]:
{{localFlags .}}{{end}}{{if .HasAvailableInheritedFlags}}
Flags of every command  [environment variable, key of the settings file]:
{{globalFlags .}}{{end}}{{if .HasAvailableSubCommands}}
Use "{{.CommandPath}} COMMAND --help" for more of a command.
{{end}}`

// teachHelp makes --help show where else each flag can be set.
func teachHelp(root *cobra.Command) {
	cobra.AddTemplateFunc("localFlags", func(c *cobra.Command) string { return flagUsages(c, c.LocalFlags()) })
	cobra.AddTemplateFunc("globalFlags", func(c *cobra.Command) string { return flagUsages(c, c.InheritedFlags()) })
	root.SetUsageTemplate(usageTemplate)
}

// flagUsages is pflag's FlagUsages with the other names of each flag in brackets after its
// text.
func flagUsages(cmd *cobra.Command, flags *pflag.FlagSet) string {
	shown := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	shown.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		c := *f
		if settings.Settable(f) {
			c.Usage += fmt.Sprintf("  [%s, %s]", settings.EnvName(cmd, f), settings.FileKey(cmd, f))
		}
		shown.AddFlag(&c)
	})
	return strings.TrimRight(shown.FlagUsages(), "\n") + "\n"
}
