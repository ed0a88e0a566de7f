package chunkserver

import (
	"bytes"
	"context"
	"encoding/hex"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
)

// goldenScrub is a scrub file of version 1.
const goldenScrub = "4d525343010000000100000000000000020000000000000003000000000000000400000000000000050000000000000006000000000000000700000000000000080000000000000009000000000000008c3d91bc"

func TestScrubFileGolden(t *testing.T) {
	rec := scrubRecord{since: 1, lastDone: 2, lastBytes: 3, lastBad: 4, started: 5, next: 6, chunks: 7, bytes: 8, bad: 9}
	require.Equal(t, goldenScrub, hex.EncodeToString(rec.encode()))
	var back scrubRecord
	require.NoError(t, back.decode(rec.encode()))
	require.Equal(t, rec, back)
}

func FuzzScrubFile(f *testing.F) {
	golden, _ := hex.DecodeString(goldenScrub)
	f.Add(golden)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r scrubRecord
		if r.decode(b) == nil && !bytes.Equal(r.encode(), b) {
			t.Fatalf("%x decodes to %+v, which is encoded otherwise", b, r)
		}
	})
}

// A pass that ends with its server continues from its stored position. A torn file
// restarts the pass, and breaks nothing.
func TestScrubGoesOnWhereItWas(t *testing.T) {
	fs, log := vfs.NewMem(1), slog.New(slog.DiscardHandler)
	require.NoError(t, fs.MkdirAll("/d"))
	now := time.Unix(1_000_000, 0)
	s := newScrubState(100)
	s.load(fs, "/d", now)
	require.False(t, s.due(now, time.Hour, moraine.UUID{0xff}), "a new device waits for its part of the interval")
	require.True(t, s.due(now.Add(time.Hour), time.Hour, moraine.UUID{0xff}))
	require.Zero(t, s.begin(now))
	s.advance(77, 5, 500, 1)
	s.save(fs, "/d", log)

	again := newScrubState(100)
	again.load(fs, "/d", now.Add(time.Minute))
	require.True(t, again.due(now, time.Hour, moraine.UUID{0xff}), "a pass is under way")
	require.EqualValues(t, 77, again.begin(now))
	again.advance(0, 5, 500, 0)
	again.end(now.Add(2 * time.Minute))
	again.save(fs, "/d", log)
	require.EqualValues(t, 1000, again.describe().LastBytes)
	require.EqualValues(t, 1, again.describe().LastBad)
	require.False(t, again.due(now.Add(time.Hour), time.Hour, moraine.UUID{}))
	require.True(t, again.due(now.Add(2*time.Hour), time.Hour, moraine.UUID{}))

	f, err := fs.Open("/d/scrub", vfs.Write)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, 20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	torn := newScrubState(100)
	torn.load(fs, "/d", now)
	require.Zero(t, torn.describe().LastDone)
}

// fakeDisk takes the configured time for a put, and returns the configured
// corruption.
type fakeDisk struct {
	brokenTier
	put time.Duration
}

func (d *fakeDisk) Put(ctx context.Context, _ tiers.Header, _ []byte, _ []uint32) error {
	select {
	case <-time.After(d.put):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *fakeDisk) Err() error { return nil }

func (d *fakeDisk) View(_ context.Context, id moraine.ChunkID, _, _ int64) (*tiers.View, error) {
	return nil, &moraine.Error{Kind: moraine.Corrupt, Ref: id.String()}
}

// A corrupt chunk counts once however often it is read. A device with more of them
// than its limit accepts no more chunks.
func TestCorruptChunksAreCountedOnce(t *testing.T) {
	w := watch(&fakeDisk{}, clock.System{}, 3)
	for range 10 {
		for stripe := range moraine.StripeID(3) {
			_, err := w.View(t.Context(), moraine.ChunkID{Stripe: stripe}, 0, 1)
			require.ErrorIs(t, err, moraine.Corrupt)
		}
	}
	require.NoError(t, w.Err())
	require.EqualValues(t, 3, w.corrupts.Load())
	_, _ = w.View(t.Context(), moraine.ChunkID{Stripe: 9}, 0, 1)
	require.ErrorIs(t, w.Err(), moraine.IOError)
	require.ErrorContains(t, w.Err(), "corrupt within a day")
}

// The median of a device's puts covers those that ended recently, and those that
// their deadline ended.
func TestMedianPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDisk{}
		w := watch(d, clock.System{}, -1)
		for i := range timedLeast {
			require.Zero(t, w.puts.micros(time.Now()), "too few to say")
			d.put = time.Duration(i+1) * time.Millisecond
			require.NoError(t, w.Put(t.Context(), tiers.Header{}, nil, nil))
		}
		require.EqualValues(t, 9000, w.puts.micros(time.Now()), "of 1 to 16 ms")
		d.put = 2 * time.Second
		late := func(deadline time.Duration) {
			for range timedLeast / 2 {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				require.ErrorIs(t, w.Put(ctx, tiers.Header{}, nil, nil), context.DeadlineExceeded)
				cancel()
			}
		}
		late(9 * time.Millisecond)
		require.EqualValues(t, 9000, w.puts.micros(time.Now()), "a short deadline says nothing of how long it takes")
		late(500 * time.Millisecond)
		require.EqualValues(t, 13_000, w.puts.micros(time.Now()), "with eight that took half a second or more")
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, w.Put(canceled, tiers.Header{}, nil, nil))
		require.EqualValues(t, 13_000, w.puts.micros(time.Now()), "a cancelled put does not count")
		time.Sleep(timedWindow + time.Second)
		require.Zero(t, w.puts.micros(time.Now()), "no recent puts")
		require.Less(t, 5*timedWindow, 30*time.Second, "a burst is reported for less than half a minute")
	})
}

// Reads are compared with reads of similar length.
func TestMedianReads(t *testing.T) {
	r, now := &readTimings{}, time.Unix(1000, 0)
	require.Nil(t, r.micros(now))
	for i, n := range []int{1, 64<<10 + 8<<10, 512 << 10, 512<<10 + 8<<10, 4 << 20, 4<<20 + 8<<10, 8 << 20, 16 << 20} {
		for range timedLeast / 2 {
			r.add(now, n, readBeside, time.Duration(i/2+1)*time.Millisecond)
			r.add(now, n, readBeside+1, time.Minute) // it waits for others, and does not count
		}
	}
	// The usual lengths are in one class each, with a head and without.
	require.Equal(t, []uint64{1000, 2000, 3000, 4000}, r.micros(now))
	require.Nil(t, r.micros(now.Add(timedWindow+1)))
}
