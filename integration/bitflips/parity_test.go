package bitflips_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
)

const (
	chunkBytes  = fileBytes / 4
	firstParity = 4
)

// TestRebuiltBytesHaveTheRecordedSum: a parity chunk was encoded wrong, and a data
// chunk is missing. Reads of the whole file, and the first read of a part of it,
// return the right bytes, by the other parity. The wrong parity is reported, and
// encoded again.
func TestRebuiltBytesHaveTheRecordedSum(t *testing.T) {
	runs := testseed.Sample(t, 3)
	ranges := map[string][2]int{"all": {0, fileBytes}, "a chunk": {chunkBytes, chunkBytes}, "a part": {chunkBytes + 8192, 4096}}
	for _, name := range slices.Sorted(maps.Keys(ranges)) {
		r := ranges[name]
		for _, wrong := range []uint32{firstParity, firstParity + 1} {
			if !runs() {
				continue // the short form runs two of the six, by the seed
			}
			t.Run(name, func(t *testing.T) {
				inWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
					w.net.encodeWrong(wrong)
					require.NoError(t, w.write())
					before := w.stripe()
					w.Kill(w.holder(1))
					for range 3 {
						require.NoError(t, w.read(r[0], r[1]))
					}
					w.repairedFrom(before)
					w.scrub() // which parity was used is chance
					w.until("it is encoded again", func() bool { return w.stripe().Chunks[wrong].Crc != before.Chunks[wrong].Crc })
					w.Kill(w.holder(0), w.holder(2))
					require.NoError(t, w.read(0, fileBytes))
				})
			})
		}
	}
}

// TestScrubComparesParity: a scrub detects parity that matches its recorded
// checksum but not the data. The parity is encoded again, and its record corrected.
func TestScrubComparesParity(t *testing.T) {
	inWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
		w.net.encodeWrong(firstParity + 1)
		require.NoError(t, w.write())
		before := w.stripe()
		require.EqualValues(t, 1, w.scrub())
		w.repairedFrom(before)
		after := w.stripe()
		require.NotEqual(t, before.Chunks[firstParity+1].Crc, after.Chunks[firstParity+1].Crc)
		require.Equal(t, before.Chunks[firstParity].Crc, after.Chunks[firstParity].Crc)
		require.Zero(t, w.scrub())
		w.Kill(w.holder(0), w.holder(firstParity))
		require.NoError(t, w.read(0, fileBytes))
	})
}

// TestWrongParityThatIsGoneIsEncodedAgain: the device of a wrongly encoded parity
// chunk is lost. No rebuilt bytes match its recorded checksum; it is encoded again
// nevertheless.
func TestWrongParityThatIsGoneIsEncodedAgain(t *testing.T) {
	inWorld(t, incluster.Options{ScrubParity: -1}, func(w *world) {
		w.net.encodeWrong(firstParity)
		require.NoError(t, w.write())
		before := w.stripe()
		w.Kill(w.holder(firstParity))
		w.repairedFrom(before)
		require.NotEqual(t, before.Chunks[firstParity].Crc, w.stripe().Chunks[firstParity].Crc)
		w.Kill(w.holder(0), w.holder(1))
		require.NoError(t, w.read(0, fileBytes))
	})
}

// TestTwoWrongParities: both parity chunks of a stripe were encoded wrong. While a
// data chunk is missing nothing can be rebuilt, and reads fail and serve no wrong
// byte. With the data back they return the right bytes, and a scrub has both
// encoded again.
func TestTwoWrongParities(t *testing.T) {
	inWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
		w.net.encodeWrong(firstParity, firstParity+1)
		require.NoError(t, w.write())
		before := w.stripe()
		host := w.holder(1)
		w.Kill(host)
		for name, r := range map[string][2]int{"all": {0, fileBytes}, "a chunk": {chunkBytes, chunkBytes}, "a part": {chunkBytes + 8192, 4096},
			"what rotted": {chunkBytes, 4096}} {
			for range 3 {
				require.Error(t, w.read(r[0], r[1]), name)
			}
		}
		require.NoError(t, w.Restart(host))
		w.until("the data is there", func() bool { return w.read(0, fileBytes) == nil })
		w.scrub()
		w.until("both are encoded again", func() bool {
			now := w.stripe()
			return now.Chunks[firstParity].Crc != before.Chunks[firstParity].Crc &&
				now.Chunks[firstParity+1].Crc != before.Chunks[firstParity+1].Crc && w.topology().RepairQueued == 0
		})
		require.Zero(t, w.scrub())
		w.Kill(w.holder(0), w.holder(2))
		require.NoError(t, w.read(0, fileBytes))
	})
}

// TestTwoWrongParitiesAndADeviceThatIsOut: the data chunk's device went out, so
// that its repair was tried with wrong parity. Nothing wrong is ever recorded as
// data.
func TestTwoWrongParitiesAndADeviceThatIsOut(t *testing.T) {
	inWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
		w.net.encodeWrong(firstParity, firstParity+1)
		require.NoError(t, w.write())
		before := w.stripe()
		host := w.holder(1)
		w.Kill(host)
		time.Sleep(2 * time.Minute) // repairs are tried
		require.Error(t, w.read(0, fileBytes))
		require.Error(t, w.read(chunkBytes, 4096))
		require.Equal(t, before.Chunks[1].Crc, w.stripe().Chunks[1].Crc)
		require.NoError(t, w.Restart(host))
		w.until("the data is there", func() bool { return w.read(0, fileBytes) == nil })
		w.scrub()
		w.until("both are encoded again", func() bool {
			now := w.stripe()
			return now.Chunks[firstParity].Crc != before.Chunks[firstParity].Crc && now.Chunks[firstParity+1].Crc != before.Chunks[firstParity+1].Crc
		})
		require.NoError(t, w.read(0, fileBytes))
	})
}
