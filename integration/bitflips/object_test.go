package bitflips_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"path"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/localbucket"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// rot flips one bit in the memory of a chunkserver: answers of the service share
// the memory in which it keeps a chunk, or a piece of an object. It does so after
// the answer was sent.
type rot struct {
	mu    sync.Mutex
	armed bool
	bit   int
	done  bool // it has flipped
}

// begin makes a bit of the next answer flip after it was sent.
func (r *rot) begin(rng *rand.Rand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed, r.done, r.bit = true, false, int(rng.Uint32()>>1)
}

// flipped reports whether it did.
func (r *rot) flipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// answered returns release with the flip before it.
func (r *rot) answered(payload [][]byte, release func()) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.armed || len(payload) == 0 || len(payload[0]) == 0 {
		return release
	}
	r.armed = false
	return func() {
		r.mu.Lock()
		flipBit(payload[0], r.bit)
		r.done = true
		r.mu.Unlock()
		release()
	}
}

// rotting is the service of a chunkserver with damaged memory.
type rotting struct {
	transport.ChunkService
	rot *rot
}

// GetChunk implements transport.ChunkService.
func (s rotting) GetChunk(ctx context.Context, req *wire.GetChunk) (*wire.GetChunkReply, [][]byte, func(), error) {
	reply, payload, release, err := s.ChunkService.GetChunk(ctx, req)
	if err == nil {
		release = s.rot.answered(payload, release)
	}
	return reply, payload, release, err
}

// GetPiece implements transport.ChunkService.
func (s rotting) GetPiece(ctx context.Context, req *wire.GetPiece) (*wire.GetPieceReply, [][]byte, func(), error) {
	reply, payload, release, err := s.ChunkService.GetPiece(ctx, req)
	if err == nil {
		release = s.rot.answered(payload, release)
	}
	return reply, payload, release, err
}

// flipArena: a chunk is damaged in the memory of its chunkserver.
func flipArena(w *world, rng *rand.Rand) {
	require.NoError(w.t, w.write())
	w.rot.begin(rng)
	require.NoError(w.t, w.read(0, fileBytes))
	require.True(w.t, w.rot.flipped())
	require.NoError(w.t, w.read(0, fileBytes))
	w.healed()
}

// evict flushes the current file, and drops its local bytes.
func (w *world) evict() {
	w.t.Helper()
	attr, err := w.admin.Stat(w.ctx, w.path)
	require.NoError(w.t, err)
	for _, kind := range []client.JobKind{client.JobFlush, client.JobEvict} {
		jobs, err := w.admin.Jobs().Queue(w.ctx, kind, attr.Inode())
		require.NoError(w.t, err)
		for _, j := range jobs {
			j, err = w.admin.Jobs().Wait(w.ctx, j.ID, nil)
			require.NoError(w.t, err)
			require.Equal(w.t, client.JobDone, j.State, "%v", j)
		}
	}
	attr, err = w.admin.Stat(w.ctx, w.path)
	require.NoError(w.t, err)
	require.True(w.t, attr.Evicted())
}

// flipPiece: a piece of an object is damaged in the memory of a chunkserver that
// caches it.
func flipPiece(w *world, rng *rand.Rand) {
	require.NoError(w.t, w.write())
	w.evict()
	w.rot.begin(rng)
	require.NoError(w.t, w.read(0, fileBytes))
	require.True(w.t, w.rot.flipped())
	require.NoError(w.t, w.read(0, fileBytes))
	require.NoError(w.t, w.admin.Remove(w.ctx, w.path))
}

// flipObject: a file that is only in the bucket is damaged there.
func flipObject(w *world, rng *rand.Rand) {
	require.NoError(w.t, w.write())
	w.evict()
	key := sha256.Sum256([]byte(w.path[1:]))
	file := path.Join(localbucket.Dir, "objects", hex.EncodeToString(key[:]))
	at := rng.Int64N(fileBytes)
	require.NoError(w.t, flipFile(w.bucket.Disk(), file, at, rng.IntN(8)))
	require.Error(w.t, w.read(0, fileBytes), "bit of byte %d", at)
	require.NoError(w.t, w.admin.Remove(w.ctx, w.path))
}
