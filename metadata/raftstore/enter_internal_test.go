package raftstore

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/limit"
)

// A proposal without a deadline that gets no place in flight is logged repeatedly, and continues
// when a place is free.
func TestAProposalWithoutAPlaceIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &proposals{deps: &Deps{Clock: clock.System{}}, inFlight: make(chan struct{}, 1), ending: make(chan struct{}), fatal: newFatal(),
			entries: limit.Resource{Name: "log entries in flight", Reports: limit.NewReporter(slog.New(slog.NewTextHandler(&log, nil)), nil)}}
		require.NoError(t, p.enter(t.Context(), "test"))
		time.AfterFunc(3*entryPatience-time.Second, func() { <-p.inFlight })
		require.NoError(t, p.enter(context.Background(), "test"))
		require.Equal(t, 2, strings.Count(log.String(), `msg="resource wait exceeded" resource="log entries in flight"`), log.String())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, moraine.Timeout, moraine.KindOf(p.enter(ctx, "test")))
	})
}
