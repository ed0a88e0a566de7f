package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/morainefs/moraine"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// defaultSettingsFile is read where it exists and --config names no other file.
const defaultSettingsFile = "/etc/moraine/moraine.yaml"

// applySettings sets every flag of cmd that the command line did not set, from the
// environment, else from the settings file. An unknown key in the file is an error that
// names it: a misspelt setting must not be silent.
func applySettings(cmd *cobra.Command) error {
	file, err := readSettings(cmd)
	if err != nil {
		return err
	}
	if err := file.checkKeys(cmd.Root()); err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !settable(f) {
			return
		}
		if v, ok := os.LookupEnv(envName(cmd, f)); ok {
			if err := setFromEnv(cmd, f, v); err != nil {
				errs = append(errs, usageError("environment variable %s=%q: %v", envName(cmd, f), v, err))
			}
			return
		}
		v, ok := file.lookup(fileKey(cmd, f))
		if !ok {
			return
		}
		if err := setFlag(cmd, f, v); err != nil {
			errs = append(errs, usageError("%s: %s: %v", file.path, fileKey(cmd, f), err))
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

// settable reports whether f may come from the environment and the file.
func settable(f *pflag.Flag) bool {
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

// settingWords names f from the root down: "endpoint" for a flag of all commands,
// "chunkserver device" for one of a command, and "bench bytes" for one that `bench write`
// and its siblings share.
func settingWords(cmd *cobra.Command, f *pflag.Flag) []string {
	return append(strings.Fields(owner(cmd, f).CommandPath()), f.Name)[1:]
}

// envName is MORAINE_ENDPOINT for a global flag and MORAINE_CHUNKSERVER_DEVICE
// for one of a command.
func envName(cmd *cobra.Command, f *pflag.Flag) string {
	words := strings.Join(append([]string{"moraine"}, settingWords(cmd, f)...), "_")
	return strings.ToUpper(strings.ReplaceAll(words, "-", "_"))
}

// fileKey is `endpoint` for a global flag and `chunkserver.device` for one of a
// command.
func fileKey(cmd *cobra.Command, f *pflag.Flag) string {
	return strings.Join(settingWords(cmd, f), ".")
}

// settings is the settings file: nested maps, keyed by command and flag.
type settings struct {
	path   string
	values map[string]any
}

func readSettings(cmd *cobra.Command) (settings, error) {
	path, explicit := defaultSettingsFile, false
	if v, ok := os.LookupEnv("MORAINE_CONFIG"); ok {
		path, explicit = v, true
	}
	if f := cmd.Flags().Lookup("config"); f != nil && f.Changed {
		path, explicit = f.Value.String(), true
	}
	s := settings{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return s, nil
	}
	if err != nil {
		return s, usageError("settings file: %v: write the file, or correct --config", err)
	}
	if err := yaml.Unmarshal(data, &s.values); err != nil {
		return s, usageError("settings file %s: %s", path, yaml.FormatError(err, false, false))
	}
	return s, nil
}

func (s settings) lookup(key string) (any, bool) {
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

// checkKeys refuses keys that name no command and no flag.
func (s settings) checkKeys(cmd *cobra.Command) error {
	return s.checkLevel(cmd, s.values, "")
}

func (s settings) checkLevel(cmd *cobra.Command, values map[string]any, prefix string) error {
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
		if f := flags.Lookup(key); f == nil || !settable(f) {
			return usageError("settings file %s: unknown key %q; keys are the names of flags, below "+
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

// usageError is an error in the caller's command line or settings: exit code 2.
func usageError(format string, args ...any) error {
	return &wrongUse{fmt.Errorf(format, args...)}
}

// asWrongUse makes err a wrong use, in its own words.
func asWrongUse(err error) error { return &wrongUse{err} }

type wrongUse struct{ err error }

func (e *wrongUse) Error() string { return e.err.Error() }
func (e *wrongUse) Unwrap() error { return e.err }
func (e *wrongUse) Is(target error) bool {
	return target == moraine.InvalidArgument
}
