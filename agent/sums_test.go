package agent_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/transport/wire"
)

// TestBytesAreFixedAtTheSeal: a trainer that computes no sums, and writes to its slot after the seal, spoils
// its step: no step has bytes that were not there at the seal. That holds for the part that waits for
// its turn, and for one that the next agent writes.
func TestBytesAreFixedAtTheSeal(t *testing.T) {
	for name, restart := range map[string]bool{"the same agent": false, "the next agent": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 64<<20)
			open := n.gate(func(s *wire.SealPart) bool { return s.Key.Step == 1 })
			n.start(0)
			p := n.peer(runPath, "one", 1)
			p.sealBytes(1, data(1, 0))
			slot := p.sealBytes(2, data(2, 0)) // it waits for its turn, after step 1
			if restart {
				require.ErrorIs(t, n.stop(), moraine.Incomplete)
			}
			_, err := slot.WriteAt([]byte("changed"), partBytes-100)
			require.NoError(t, err)
			open()
			if restart {
				n.start(0)
			}
			require.NoError(t, n.wait(1))
			err = n.wait(2)
			require.ErrorIs(t, err, moraine.Corrupt)
		})
	}
}

// sealBytes saves bytes as a tensor. It returns the slot, which the trainer can still write to.
func (p *peer) sealBytes(step uint64, bytes []byte) *os.File {
	p.n.t.Helper()
	t := p.n.t
	_, files, err := p.conn.Exchange(t.Context(), &agentproto.Request{Begin: &agentproto.Begin{Step: step, Bytes: int64(len(bytes))}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files[0].Close()) })
	_, err = files[0].WriteAt(bytes, 0)
	require.NoError(t, err)
	require.NoError(t, p.seal(step, int64(len(bytes))))
	return files[0]
}
