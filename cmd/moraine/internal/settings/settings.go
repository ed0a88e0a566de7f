// Package settings sets the flags of a command that the command line does not set: from the
// environment, else from the settings file. Each flag has a name in both (EnvName, FileKey).
//
// One path through it: the root command calls Apply before each command -> Apply reads the
// file, refuses unknown keys, and sets each flag that neither was given nor is in the
// environment.
package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// DefaultSettingsFile is read where it exists and --config names no other file.
const DefaultSettingsFile = "/etc/moraine/moraine.yaml"

// Apply sets every flag of cmd that the command line did not set, from the
// environment, else from the settings file. An unknown key in the file is an error that
// names it: a misspelt setting must not be silent.
func Apply(cmd *cobra.Command) error {
	file, err := Read(cmd)
	if err != nil {
		return err
	}
	if err := file.CheckKeys(cmd.Root()); err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !Settable(f) {
			return
		}
		if v, ok := os.LookupEnv(EnvName(cmd, f)); ok {
			if err := setFromEnv(cmd, f, v); err != nil {
				errs = append(errs, cli.UsageError("environment variable %s=%q: %v", EnvName(cmd, f), v, err))
			}
			return
		}
		v, ok := file.Lookup(FileKey(cmd, f))
		if !ok {
			return
		}
		if err := setFlag(cmd, f, v); err != nil {
			errs = append(errs, cli.UsageError("%s: %s: %v", file.path, FileKey(cmd, f), err))
		}
	})
	return errors.Join(errs...)
}

// setFromEnv sets f from an environment variable. A flag that may be repeated has its
// values there between commas.
func setFromEnv(cmd *cobra.Command, f *pflag.Flag, v string) error {
	if f.Value.Type() != "stringArray" {
		return cmd.Flags().Set(f.Name, v)
	}
	for _, one := range strings.Split(v, ",") {
		if err := cmd.Flags().Set(f.Name, one); err != nil {
			return err
		}
	}
	return nil
}

// setFlag sets f from a YAML scalar or list.
func setFlag(cmd *cobra.Command, f *pflag.Flag, v any) error {
	list, ok := v.([]any)
	if !ok {
		return cmd.Flags().Set(f.Name, fmt.Sprint(v))
	}
	for _, e := range list {
		if err := cmd.Flags().Set(f.Name, fmt.Sprint(e)); err != nil {
			return err
		}
	}
	return nil
}

// Settable reports whether f may come from the environment and the file.
func Settable(f *pflag.Flag) bool {
	switch f.Name {
	case "help", "version", "config":
		return false
	}
	return true
}

// owner returns the command that has f: cmd, or the parent command that shares f with all
// commands below it.
func owner(cmd *cobra.Command, f *pflag.Flag) *cobra.Command {
	for c := cmd; c != nil; c = c.Parent() {
		if c.PersistentFlags().Lookup(f.Name) == f {
			return c
		}
	}
	return cmd
}

// settingWords names f from the root down. A flag of all commands is "endpoint", a flag of
// one command "chunkserver device". "bench bytes" is a flag that `bench write` and its
// siblings share.
func settingWords(cmd *cobra.Command, f *pflag.Flag) []string {
	return append(strings.Fields(owner(cmd, f).CommandPath()), f.Name)[1:]
}

// EnvName is MORAINE_ENDPOINT for a global flag and MORAINE_CHUNKSERVER_DEVICE
// for one of a command.
func EnvName(cmd *cobra.Command, f *pflag.Flag) string {
	words := strings.Join(append([]string{"moraine"}, settingWords(cmd, f)...), "_")
	return strings.ToUpper(strings.ReplaceAll(words, "-", "_"))
}

// FileKey is `endpoint` for a global flag and `chunkserver.device` for one of a
// command.
func FileKey(cmd *cobra.Command, f *pflag.Flag) string {
	return strings.Join(settingWords(cmd, f), ".")
}

// File is the settings file: nested maps, keyed by command and flag.
type File struct {
	path   string
	values map[string]any
}

// Read reads the settings file that --config or MORAINE_CONFIG names, or the default one.
func Read(cmd *cobra.Command) (File, error) {
	path, explicit := DefaultSettingsFile, false
	if v, ok := os.LookupEnv("MORAINE_CONFIG"); ok {
		path, explicit = v, true
	}
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		path, explicit = f.Value.String(), true
	}
	s := File{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return s, nil
	}
	if err != nil {
		return s, cli.UsageError("settings file: %v: write the file, or correct --config", err)
	}
	if err := yaml.Unmarshal(data, &s.values); err != nil {
		return s, cli.UsageError("settings file %s: %s", path, yaml.FormatError(err, false, false))
	}
	return s, nil
}

// Lookup returns the value of a key such as chunkserver.device.
func (s File) Lookup(key string) (any, bool) {
	var at any = s.values
	for _, word := range strings.Split(key, ".") {
		m, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = m[word]; !ok {
			return nil, false
		}
	}
	return at, at != nil
}

// CheckKeys refuses keys that name no command and no flag.
func (s File) CheckKeys(cmd *cobra.Command) error {
	return s.checkLevel(cmd, s.values, "")
}

func (s File) checkLevel(cmd *cobra.Command, values map[string]any, prefix string) error {
	for key, v := range values {
		if sub := subcommand(cmd, key); sub != nil {
			if v == nil {
				continue // a command's name, and nothing below it
			}
			if m, ok := v.(map[string]any); ok {
				if err := s.checkLevel(sub, m, prefix+key+"."); err != nil {
					return err
				}
				continue
			}
		}
		flags := cmd.LocalFlags()
		if !cmd.HasParent() {
			flags = cmd.PersistentFlags()
		}
		if f := flags.Lookup(key); f == nil || !Settable(f) {
			return cli.UsageError("settings file %s: unknown key %q; keys are the names of flags, below "+
				"the names of their commands (see `%s --help`)",
				s.path, prefix+key, cmd.CommandPath())
		}
	}
	return nil
}

func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}
