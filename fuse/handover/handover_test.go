package handover_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/fuse/handover"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/stretchr/testify/require"
)

// TestTheNextDaemonFindsTheSlots: after any sequence of calls, a state that is opened again has
// exactly the slots that were put and not dropped, with all their fields.
func TestTheNextDaemonFindsTheSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.First(t), 0))
	f, err := handover.Create(handover.Header{Session: 7})
	require.NoError(t, err)
	defer f.Close()
	want := map[handover.Place]handover.Slot{}
	for range 20 {
		s, found, err := handover.Open(f)
		require.NoError(t, err)
		require.Len(t, found, len(want))
		for _, at := range found {
			require.Equal(t, want[at.Place], at.Slot)
		}
		for range 300 {
			if r.IntN(3) == 0 {
				for p := range want {
					s.Drop(p)
					delete(want, p)
					break
				}
				continue
			}
			slot := handover.Slot{Kind: handover.Kind(1 + r.IntN(5)), Flags: r.Uint32(), Inode: r.Uint64(), Handle: r.Uint64(), Unique: r.Uint64(),
				Owner: r.Uint64(), Start: r.Uint64(), End: r.Uint64(), PID: r.Uint32()}
			p := s.Put(slot)
			require.NotContains(t, want, p)
			want[p] = slot
		}
		require.NoError(t, s.Err())
	}
}

func TestHeaderOfTheState(t *testing.T) {
	f, err := handover.Create(handover.Header{Life: 1, InitLen: 3, Init: [256]byte{1, 2, 3}, Nonce: [16]byte{9}})
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, handover.Update(f, func(h *handover.Header) { h.Life, h.Session = 2, 5 }))
	h, err := handover.ReadHeader(f)
	require.NoError(t, err)
	require.Equal(t, handover.Header{Version: h.Version, InitLen: 3, Init: [256]byte{1, 2, 3}, Life: 2, Nonce: [16]byte{9}, Session: 5}, h)
	require.NoError(t, handover.Update(f, func(h *handover.Header) { h.Version++ }))
	_, err = handover.ReadHeader(f)
	require.ErrorIs(t, err, moraine.Unimplemented)
}

// A mount without a supervisor has no state.
func TestNoState(t *testing.T) {
	var s *handover.State
	require.Zero(t, s.Put(handover.Slot{Kind: handover.Paged}))
	s.Drop(0)
	require.NoError(t, s.Err())
}

// TestBytesOfTheState compares the bytes with those that docs/formats/mount-state.md has.
func TestBytesOfTheState(t *testing.T) {
	f, err := handover.Create(handover.Header{InitLen: 2, ReplyLen: 3, Init: [256]byte{7, 8}, Reply: [256]byte{4, 5, 6}, Life: 0x11, Nonce: [16]byte{9, 15: 10}, Session: 0x12})
	require.NoError(t, err)
	defer f.Close()
	s, _, err := handover.Open(f)
	require.NoError(t, err)
	require.EqualValues(t, 4096, s.Put(handover.Slot{Kind: handover.OpenFile}))
	require.EqualValues(t, 4160, s.Put(handover.Slot{Kind: handover.Lock, Flags: handover.Write | handover.Flock, Inode: 1, Handle: 2, Unique: 3, Owner: 4, Start: 5, End: 6, PID: 7}))
	require.EqualValues(t, 4224, s.Put(handover.Slot{Kind: handover.Paged, Flags: handover.Writes | handover.Direct | handover.HasPages | handover.Sync}))
	s.Drop(4096)
	n := binary.LittleEndian
	want := make([]byte, 4096+3*64)
	n.PutUint32(want[0:], 1)
	n.PutUint32(want[4:], 2)
	n.PutUint32(want[8:], 3)
	copy(want[16:], []byte{7, 8})
	copy(want[272:], []byte{4, 5, 6})
	n.PutUint64(want[528:], 0x11)
	want[536], want[551] = 9, 10
	n.PutUint64(want[552:], 0x12)
	n.PutUint32(want[4160:], 5)
	n.PutUint32(want[4164:], 48)
	for i := range uint64(6) {
		n.PutUint64(want[4168+8*i:], i+1)
	}
	n.PutUint32(want[4216:], 7)
	n.PutUint32(want[4224:], 3)
	n.PutUint32(want[4228:], 15)
	got := make([]byte, len(want)+1)
	read, _ := f.ReadAt(got, 0)
	require.Equal(t, want, got[:read])
}

// FuzzOpen: any bytes are read or refused, and what is read fits into the file.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 4096+64))
	f.Add(append(make([]byte, 4096), 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := os.Create(t.TempDir() + "/state")
		require.NoError(t, err)
		defer file.Close()
		_, err = file.Write(b)
		require.NoError(t, err)
		if h, err := handover.ReadHeader(file); err == nil {
			require.LessOrEqual(t, max(h.InitLen, h.ReplyLen), uint32(256))
		}
		_, found, err := handover.Open(file)
		require.NoError(t, err)
		for _, at := range found {
			require.LessOrEqual(t, int(at.Place)+64, len(b))
		}
	})
}
