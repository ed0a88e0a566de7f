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

// defaultSettingsFile is read when it exists and --config names no other.
const defaultSettingsFile = "/etc/moraine/moraine.yaml"

// applySettings gives every flag of cmd that the command line did not set its
// value from the environment, else from the settings file. An unknown key in
// the file is an error that names it: a misspelt setting must not be silent.
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
			if err := cmd.Flags().Set(f.Name, v); err != nil {
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

// commandPath names cmd below the root: "cluster status" is [cluster status].
func commandPath(cmd *cobra.Command) []string {
	return strings.Fields(cmd.CommandPath())[1:]
}

// isGlobal reports whether f is one of the root's flags, which have the same
// name for every command.
func isGlobal(cmd *cobra.Command, f *pflag.Flag) bool {
	return cmd.Root().PersistentFlags().Lookup(f.Name) == f
}

// envName is MORAINE_ENDPOINT for a global flag and MORAINE_CHUNKSERVER_DEVICE
// for one of a command.
func envName(cmd *cobra.Command, f *pflag.Flag) string {
	words := []string{"moraine"}
	if !isGlobal(cmd, f) {
		words = append(words, commandPath(cmd)...)
	}
	return strings.ToUpper(strings.ReplaceAll(strings.Join(append(words, f.Name), "_"), "-", "_"))
}

// fileKey is `endpoint` for a global flag and `chunkserver.device` for one of a
// command.
func fileKey(cmd *cobra.Command, f *pflag.Flag) string {
	if isGlobal(cmd, f) {
		return f.Name
	}
	return strings.Join(append(commandPath(cmd), f.Name), ".")
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
		return s, usageError("settings file: %v: write it, or correct --config", err)
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
	return at, true
}

// checkKeys refuses keys that no command and no flag has.
func (s settings) checkKeys(cmd *cobra.Command) error {
	return s.checkLevel(cmd, s.values, "")
}

func (s settings) checkLevel(cmd *cobra.Command, values map[string]any, prefix string) error {
	for key, v := range values {
		if sub := subcommand(cmd, key); sub != nil {
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
			return usageError("settings file %s: unknown key %q; keys are the names of flags, below the names of their commands (see `%s --help`)",
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

// usageError is an error of the caller's making: exit code 2.
func usageError(format string, args ...any) error {
	return &wrongUse{fmt.Errorf(format, args...)}
}

type wrongUse struct{ err error }

func (e *wrongUse) Error() string { return e.err.Error() }
func (e *wrongUse) Unwrap() error { return e.err }
func (e *wrongUse) Is(target error) bool {
	return target == moraine.InvalidArgument
}
