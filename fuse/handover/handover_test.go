package handover_test

import (
	"math/rand/v2"
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
