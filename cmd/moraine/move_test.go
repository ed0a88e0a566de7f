package main

import (
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

func TestMovesAreUsedRightly(t *testing.T) {
	for name, args := range map[string][]string{
		"no path":          {"flush"},
		"a local path":     {"evict", "./file"},
		"a policy unknown": {"policy", "set", "--flush", "sometimes", "moraine://h/p"},
		"a scheme unknown": {"policy", "set", "--scheme", "many", "moraine://h/p"},
		"no scheme at all": {"policy", "set", "--scheme", "", "moraine://h/p"},
		"nothing to set":   {"policy", "set", "moraine://h/p"},
		"a job unknown":    {"job", "wait", "xyz", "--endpoint", "h", "--insecure"},
		"no directory":     {"object-server"},
		"a bucket's form":  {"chunkserver", "--id", "n1", "--device", t.TempDir(), "--endpoint", "h", "--insecure", "--bucket", "checkpoints"},
		"both":             {"dev-cluster", "--no-bucket", "--bucket", "s3://b"},
		"no bucket":        {"dev-cluster", "--bucket-endpoint", "http://h"},
	} {
		_, stderr, code := invoke(t, args...)
		require.Equal(t, cli.ExitWrongUse, code, "%s: %s", name, stderr)
	}
}

func TestWhereAMoveBringsAFile(t *testing.T) {
	reached := map[string]func(*wire.Attr) bool{}
	for _, m := range moves {
		reached[m.name] = m.reached
	}
	local := &wire.Attr{Size: 10, Stored: 10}
	both := &wire.Attr{Size: 10, Stored: 10, Clean: true}
	gone := &wire.Attr{Size: 10, Clean: true, Evicted: true}
	for name, want := range map[string][3]bool{"flush": {false, true, true}, "evict": {false, false, true}, "stage": {true, true, false}} {
		require.Equal(t, want, [3]bool{reached[name](local), reached[name](both), reached[name](gone)}, name)
	}
}

func TestATierOfTheirOwn(t *testing.T) {
	var cfg devcluster.Config
	require.NoError(t, devTier{}.apply(&cfg))
	require.True(t, cfg.ObjectServer)
	cfg = devcluster.Config{}
	require.NoError(t, devTier{bucket: "s3://b/p", endpoint: "http://h"}.apply(&cfg))
	require.False(t, cfg.ObjectServer)
	require.Equal(t, []string{"--bucket", "s3://b/p", "--bucket-endpoint", "http://h"}, cfg.ChunkserverArgs)
	cfg = devcluster.Config{}
	require.NoError(t, devTier{none: true}.apply(&cfg))
	require.False(t, cfg.ObjectServer)
}
