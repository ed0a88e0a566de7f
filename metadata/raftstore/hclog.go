package raftstore

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hcLog makes raft and raft-wal log to a slog.Logger. Raft's warnings about normal events
// (elections, lost contact) stay warnings. Its errors become warnings too, because the caller of
// Run logs what ends a node.
type hcLog struct {
	log  *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hcLog)(nil)

func newHCLog(l *slog.Logger) hclog.Logger { return &hcLog{log: l} }

func (h *hcLog) emit(level slog.Level, msg string, args []any) {
	if !h.log.Enabled(context.Background(), level) {
		return
	}
	clean := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		clean[i] = a
	}
	h.log.Log(context.Background(), level, msg, clean...)
}

// Log implements hclog.Logger.
func (h *hcLog) Log(level hclog.Level, msg string, args ...any) {
	switch {
	case level <= hclog.Debug:
		h.emit(slog.LevelDebug, msg, args)
	case level == hclog.Info:
		h.emit(slog.LevelInfo, msg, args)
	default:
		h.emit(slog.LevelWarn, msg, args)
	}
}

func (h *hcLog) Trace(msg string, args ...any) { h.emit(slog.LevelDebug, msg, args) }
func (h *hcLog) Debug(msg string, args ...any) { h.emit(slog.LevelDebug, msg, args) }
func (h *hcLog) Info(msg string, args ...any)  { h.emit(slog.LevelInfo, msg, args) }
func (h *hcLog) Warn(msg string, args ...any)  { h.emit(slog.LevelWarn, msg, args) }
func (h *hcLog) Error(msg string, args ...any) { h.emit(slog.LevelWarn, msg, args) }

func (h *hcLog) enabled(level slog.Level) bool {
	return h.log.Enabled(context.Background(), level)
}

func (h *hcLog) IsTrace() bool { return false }
func (h *hcLog) IsDebug() bool { return h.enabled(slog.LevelDebug) }
func (h *hcLog) IsInfo() bool  { return h.enabled(slog.LevelInfo) }
func (h *hcLog) IsWarn() bool  { return h.enabled(slog.LevelWarn) }
func (h *hcLog) IsError() bool { return h.enabled(slog.LevelWarn) }

func (h *hcLog) ImpliedArgs() []any { return h.args }
func (h *hcLog) Name() string       { return h.name }

func (h *hcLog) With(args ...any) hclog.Logger {
	return &hcLog{log: h.log.With(args...), name: h.name, args: append(h.args[:len(h.args):len(h.args)], args...)}
}

func (h *hcLog) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hcLog) ResetNamed(name string) hclog.Logger {
	return &hcLog{log: h.log.With("part", name), name: name, args: h.args}
}

// SetLevel does nothing: the slog handler decides.
func (h *hcLog) SetLevel(hclog.Level) {}

func (h *hcLog) GetLevel() hclog.Level {
	if h.IsDebug() {
		return hclog.Debug
	}
	return hclog.Info
}

func (h *hcLog) StandardLogger(opts *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(opts), "", 0)
}

func (h *hcLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return hcWriter{h} }

type hcWriter struct{ h *hcLog }

func (w hcWriter) Write(p []byte) (int, error) {
	w.h.Info(string(p))
	return len(p), nil
}
