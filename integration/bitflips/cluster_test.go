package bitflips_test

import (
	"bytes"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

func flipBit(p []byte, bit int) {
	bit %= 8 * len(p)
	p[bit/8] ^= 1 << (bit % 8)
}

// newFile replaces the current file by another one, with other bytes.
func (w *world) newFile(rng *rand.Rand, path string) {
	w.path = path
	for i := range w.data {
		w.data[i] = byte(rng.Uint32())
	}
}

// flipPuts flips a random bit of a random chunk as it is first put over n: in the
// memory of its writer, or only in transit. flipped reports whether it did.
func flipPuts(n *network, rng *rand.Rand, inMemory bool) (flipped func() bool) {
	done, index, bit := false, rng.Uint32N(6), int(rng.Uint32()>>1)
	n.set(func() {
		n.put = func(req *wire.PutChunk, data [][]byte) {
			if req.Index != index || done {
				return
			}
			done = true
			i := bit % len(data)
			if !inMemory {
				data[i] = bytes.Clone(data[i])
			}
			flipBit(data[i], bit)
		}
	})
	return func() (was bool) {
		n.set(func() { n.put, was = nil, done })
		return was
	}
}

// healed requires that all of the file is readable and right, and may lose as many
// hosts as before.
func (w *world) healed() {
	w.t.Helper()
	require.NoError(w.t, w.read(0, fileBytes))
	w.until("repair", func() bool { return w.topology().RepairQueued == 0 })
	w.until("what was replaced is deleted", func() bool {
		n, err := w.Tombstones()
		require.NoError(w.t, err)
		return n == 0
	})
	require.Zero(w.t, w.scrub(), "all is healed")
	lost := []string{w.holder(0), w.holder(firstParity)}
	w.Kill(lost...)
	require.NoError(w.t, w.read(0, fileBytes), "as many hosts may be lost as before")
	w.back(lost...)
}

// back restarts killed hosts.
func (w *world) back(hosts ...string) {
	w.t.Helper()
	require.NoError(w.t, w.Restart(hosts...))
	require.NoError(w.t, w.WaitReady(w.ctx))
	w.until("all hosts are back", func() bool {
		for _, h := range w.topology().GetTopology().GetHosts() {
			for _, d := range h.Devices {
				if d.State != wire.DeviceState_DEVICE_STATE_IN {
					return false
				}
			}
		}
		return w.topology().RepairQueued == 0
	})
}

func flipWriter(w *world, rng *rand.Rand) {
	flipped := flipPuts(w.net, rng, true)
	require.ErrorIs(w.t, w.write(), moraine.Corrupt)
	require.True(w.t, flipped())
}

func flipHandle(w *world, rng *rand.Rand) {
	f, err := w.user.Create(w.ctx, w.path, client.CreateOptions{Scheme: moraine.Scheme{K: 4, M: 2}})
	require.NoError(w.t, err)
	_, err = f.Commit(w.ctx)
	require.NoError(w.t, err)
	attr, err := w.user.Stat(w.ctx, w.path)
	require.NoError(w.t, err)
	h, err := w.user.Inodes().OpenHandle(w.ctx, attr.Inode(), client.HandleOptions{})
	require.NoError(w.t, err)
	flipped := flipPuts(w.net, rng, true)
	_, err = h.WriteAt(w.ctx, bytes.Clone(w.data), 0)
	require.NoError(w.t, err)
	require.Error(w.t, h.Flush(w.ctx), "it is lost, and said so")
	require.True(w.t, flipped())
	_ = h.Close(w.ctx) // it may return the error once more
	attr, err = w.admin.Stat(w.ctx, w.path)
	require.NoError(w.t, err)
	require.Zero(w.t, attr.Size(), "the bytes that were there before are there")
}

func flipPut(w *world, rng *rand.Rand) {
	flipped := flipPuts(w.net, rng, false)
	require.NoError(w.t, w.write())
	require.True(w.t, flipped())
	w.healed()
}

// flipGets flips a bit of the first payload read over n.
func flipGets(n *network, rng *rand.Rand) (flipped func() bool) {
	done, bit := false, int(rng.Uint32()>>1)
	n.set(func() {
		n.get = func(_ *wire.GetChunk, p []byte) {
			if !done && len(p) > 0 {
				done = true
				flipBit(p, bit)
			}
		}
	})
	return func() (was bool) {
		n.set(func() { n.get, was = nil, done })
		return was
	}
}

func flipGet(w *world, rng *rand.Rand) {
	require.NoError(w.t, w.write())
	flipped := flipGets(w.net, rng)
	require.NoError(w.t, w.read(0, fileBytes))
	require.True(w.t, flipped())
	w.healed()
}

// repairs makes a chunk be rebuilt on another host, and then calls found.
func (w *world) repairs(rng *rand.Rand, found func()) {
	w.t.Helper()
	require.NoError(w.t, w.write())
	before, lost := w.stripe(), w.holder(rng.IntN(6))
	w.Kill(lost)
	w.repairedFrom(before)
	found()
	w.back(lost)
}

func flipRepairGet(w *world, rng *rand.Rand) {
	flipped := flipGets(w.peers, rng)
	w.repairs(rng, func() { require.True(w.t, flipped()) })
	w.healed()
}

func flipRepairPut(w *world, rng *rand.Rand) {
	done, bit := false, int(rng.Uint32()>>1)
	w.peers.set(func() {
		w.peers.put = func(_ *wire.PutChunk, data [][]byte) {
			if !done {
				done, data[0] = true, bytes.Clone(data[0])
				flipBit(data[0], bit)
			}
		}
	})
	w.repairs(rng, func() {
		w.peers.set(func() { w.peers.put = nil })
		require.True(w.t, done)
	})
	w.healed()
}

// flipChunk flips the bit of a random chunk on disk that where selects. The
// server's memory does not have the chunk: the server was restarted.
func flipChunk(w *world, rng *rand.Rand, where func(r disk.RecordInfo) (at int64, bit int)) {
	require.NoError(w.t, w.write())
	time.Sleep(2 * time.Second)
	index := rng.IntN(6)
	host, before := w.holder(index), w.stripe()
	w.StopNode(host)
	w.flipRecord(host, moraine.ChunkID{Stripe: moraine.StripeID(before.Id), Index: uint8(index)}, where)
	w.back(host)
	require.NoError(w.t, w.read(0, fileBytes))
	w.scrub()
	w.repairedFrom(before)
	w.healed()
}

func flipData(w *world, rng *rand.Rand) {
	flipChunk(w, rng, func(r disk.RecordInfo) (int64, int) {
		return r.Offset + r.Size - 1 - rng.Int64N(r.Header.Length), rng.IntN(8)
	})
}

func flipHead(w *world, rng *rand.Rand) {
	flipChunk(w, rng, func(r disk.RecordInfo) (int64, int) {
		named := 160 + 4*(r.Header.Length/moraine.BlockSize)
		return r.Offset + rng.Int64N(named), rng.IntN(8)
	})
}

func flipParity(w *world, rng *rand.Rand) {
	w.net.encodeWrongAt(int(rng.Uint32()>>1), firstParity+rng.Uint32N(2))
	require.NoError(w.t, w.write())
	w.net.set(func() { w.net.put, w.net.commit = nil, nil })
	before := w.stripe()
	require.EqualValues(w.t, 1, w.scrub(), "it is found")
	w.repairedFrom(before)
	w.healed()
}

func flipBackup(w *world, rng *rand.Rand) {
	backup := w.backup()
	open := func() error {
		return raftstore.InspectBackup(vfs.NewMem(rng.Uint64()), "/restore", bytes.NewReader(backup), int64(len(backup)), func(kvtx.Reader, uint64) error { return nil })
	}
	require.NoError(w.t, open())
	for range 8 {
		bit := int(rng.Uint64() >> 1)
		flipBit(backup, bit)
		require.Error(w.t, open(), "bit %d of %d bytes", bit%(8*len(backup)), len(backup))
		flipBit(backup, bit)
	}
}

func (w *world) backup() []byte {
	w.t.Helper()
	var out bytes.Buffer
	var to *raftstore.BackupWriter
	for ask := (&wire.ReadBackup{}); ; {
		resp, err := rawclient.Of(w.admin).Meta(w.ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: ask}})
		require.NoError(w.t, err)
		r := resp.GetReadBackup()
		if to == nil {
			to, err = raftstore.NewBackupWriter(&out, raftstore.BackupInfo{Cluster: w.ID(), Incarnation: r.Incarnation, Applied: r.Applied, Term: r.Term, Taken: time.Now(), Bytes: int64(r.Size)})
			require.NoError(w.t, err)
		}
		if len(r.Data) == 0 {
			require.NoError(w.t, to.Close())
			return out.Bytes()
		}
		_, err = to.Write(r.Data)
		require.NoError(w.t, err)
		ask = &wire.ReadBackup{Backup: r.Backup, Offset: ask.Offset + uint64(len(r.Data))}
	}
}
