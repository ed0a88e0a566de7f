package main

import (
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
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
