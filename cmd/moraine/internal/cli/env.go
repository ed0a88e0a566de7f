// Package cli has what the commands of moraine share: the environment of one
// invocation (Env), the addresses of files, and connections to a cluster. It
// also has output, progress, errors and exit codes.
//
// One path through it: the root command fills Env.Global from the flags -> a command calls
// Env.Dial -> it prints rows with List, which writes a table or JSON -> its error becomes
// lines by ErrorLines.
package cli

import (
	"io"
	"log/slog"
)

// Env is what the commands of one invocation share.
type Env struct {
	Out, Err io.Writer
	Args     []string // the command line
	Global   GlobalFlags
}

// GlobalFlags are the flags that every command has.
type GlobalFlags struct {
	Endpoint string
	Certs    string
	Identity string
	Mode     string
	Insecure bool
	JSON     bool
	LogLevel string
}

// DefaultLogLevel is the log level of servers.
const DefaultLogLevel = "info"

// Groups of commands in `moraine --help`.
const (
	GroupFiles   = "files"
	GroupCluster = "cluster"
	GroupServers = "servers"
)

// CommandLog returns the logger of a command that a person waits for. Its result says all
// that matters, so it logs only where a flag sets a level.
func (env *Env) CommandLog() (*slog.Logger, error) {
	if env.Global.LogLevel == DefaultLogLevel {
		return slog.New(slog.DiscardHandler), nil
	}
	return env.Log()
}

// Log returns the logger that servers use.
func (env *Env) Log() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(env.Global.LogLevel)); err != nil {
		return nil, UsageError("--log-level %q: write debug, info, warn or error", env.Global.LogLevel)
	}
	return slog.New(slog.NewTextHandler(env.Err, &slog.HandlerOptions{Level: level})), nil
}

// Version is set by the linker.
var Version = "dev"
