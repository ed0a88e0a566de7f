package integration_test

import (
	"bytes"
	enc "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/tiers/object"
)

// TestTheBucketAloneIsEnough: a reader that has only the bucket knows that a step is whole by the object
// of its index, at every instant of the flush, and reads its tensors. No process of Moraine runs then.
func TestTheBucketAloneIsEnough(t *testing.T) {
	t.Parallel()
	rng := random(seed(t))
	c := startProcs(t, devcluster.Config{Metadata: 1, Chunkservers: 3, ObjectServer: true})
	env := append(settingsFor(c), "MORAINE_LAUNCH=one")
	b, _ := bucketOf(t, c)
	const run, world, prefix = "moraine:///runs/r", 3, "runs/r/attempt-1/step-1/"
	tensors := make([][]byte, world)
	saved := make(chan outcome, world)
	for rank := range world {
		_, data := tensorOf(t, rng)
		tensors[rank] = data
		header := fmt.Sprintf(`{"w%d":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, rank, len(data), len(data))
		file := filepath.Join(t.TempDir(), "model.safetensors")
		require.NoError(t, os.WriteFile(file, append(append(enc.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...), 0o600))
		go func() {
			saved <- invoke(t, env, "ckpt", "save", run, "--step", "1", "--rank", fmt.Sprint(rank), "--world", fmt.Sprint(world), file)
		}()
	}
	for range world {
		o := <-saved
		require.Zero(t, o.code, o.stderr)
	}
	key := func(rank int) string { return fmt.Sprintf("%srank-%05d-of-%05d.safetensors", prefix, rank, world) }
	has := func(key string) bool {
		t.Helper()
		_, err := b.Head(t.Context(), object.Ref{Key: key})
		if err != nil && !errors.Is(err, moraine.NotFound) {
			require.NoError(t, err)
		}
		return err == nil
	}
	require.False(t, has(prefix+"index.moraine"))
	works(t, env, "flush", run+"/step-1")
	until := time.Now().Add(2 * time.Minute)
	for whole := false; !whole; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until), "the step is not in the bucket")
		if whole = has(prefix + "index.moraine"); whole {
			for rank := range world { // looked at after the index
				require.True(t, has(key(rank)), "the index is there before %s", key(rank))
			}
		}
	}
	for _, role := range []devcluster.Role{devcluster.Metadata, devcluster.Chunkserver} {
		for _, n := range c.Nodes(role) {
			require.NoError(t, n.Kill())
		}
	}
	for rank, want := range tensors {
		info, err := b.Head(t.Context(), object.Ref{Key: key(rank)})
		require.NoError(t, err)
		file := make([]byte, info.Size)
		require.NoError(t, b.Get(t.Context(), info.Ref, 0, file))
		header := file[8 : 8+enc.LittleEndian.Uint64(file)]
		var entries map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(header, &entries))
		var w struct {
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(entries[fmt.Sprint("w", rank)], &w))
		data := file[8+len(header):]
		require.True(t, bytes.Equal(want, data[w.Offsets[0]:w.Offsets[1]]), "rank %d", rank)
	}
}
