package bitflips_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/chunkserver"
)

// This file has the indicators of a flipped bit: counters of all processes so far,
// and log lines.

// servers adds up a counter of all chunkservers.
func (w *world) servers(of func(m *chunkserver.Metrics) float64) (sum float64) {
	for _, m := range w.Metrics.Servers() {
		sum += of(m)
	}
	return sum
}

// clients adds up a counter of clients: of all its series, or those with these values of labels.
func (w *world) clients(all []*prometheus.Registry, name string, labels ...string) (sum float64) {
	for _, reg := range all {
		families, err := reg.Gather()
		require.NoError(w.t, err)
		i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
		if i < 0 {
			continue // a vector without a series yet
		}
		for _, m := range families[i].GetMetric() {
			if !slices.ContainsFunc(labels, func(want string) bool {
				return !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == want })
			}) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

var corrupt = moraine.Corrupt.String()

// refused counts the puts that servers refused as Corrupt.
func (w *world) refused() float64 {
	return w.servers(func(m *chunkserver.Metrics) float64 { return counted(w.t, m.Puts.WithLabelValues(corrupt)) })
}

// gotWrong counts the chunks whose bytes, as received by a client, do not match
// their checksum.
func (w *world) gotWrong() float64 {
	return w.clients(w.Metrics.Clients(), "moraine_client_chunk_errors_total", "get", corrupt)
}

// peersGotWrong counts the same for chunkservers, which repair and move.
func (w *world) peersGotWrong() float64 {
	return w.clients(w.Metrics.Peers(), "moraine_client_chunk_errors_total", "get", corrupt)
}

// rotten counts the chunks that a scrub, or a server at a read, found corrupt.
func (w *world) rotten() float64 {
	return w.servers(func(m *chunkserver.Metrics) float64 {
		return counted(w.t, m.ScrubBad.WithLabelValues("corrupt")) + counted(w.t, m.Gets.WithLabelValues(corrupt))
	})
}

// wrongParity counts the parity chunks that scrubs found to be wrong.
func (w *world) wrongParity() float64 {
	return w.servers(func(m *chunkserver.Metrics) float64 { return counted(w.t, m.ScrubBad.WithLabelValues("parity")) })
}

// rottenPieces counts the pieces of objects that were damaged in the memory of a
// chunkserver.
func (w *world) rottenPieces() float64 {
	return w.servers(func(m *chunkserver.Metrics) float64 { return counted(w.t, m.PiecesRotten) })
}

// failedPieces counts the reads of objects that no server could answer.
func (w *world) failedPieces() float64 {
	return w.clients(w.Metrics.Clients(), "moraine_client_piece_errors_total")
}

// logged counts the log lines of level Warn or Error, by their message.
type logged struct {
	slog.Handler // prints them; nil: none
	lines        *lines
}

type lines struct {
	mu sync.Mutex
	of map[string]int
}

func (l *lines) count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[message]
}

// Enabled implements slog.Handler.
func (l logged) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || l.Handler != nil && l.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l logged) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		l.lines.mu.Lock()
		l.lines.of[r.Message]++
		l.lines.mu.Unlock()
	}
	if l.Handler == nil || !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l logged) WithAttrs(attrs []slog.Attr) slog.Handler {
	if l.Handler == nil {
		return l
	}
	return logged{l.Handler.WithAttrs(attrs), l.lines}
}

// WithGroup implements slog.Handler.
func (l logged) WithGroup(name string) slog.Handler {
	if l.Handler == nil {
		return l
	}
	return logged{l.Handler.WithGroup(name), l.lines}
}
