package intruder_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// TestIntruderOfAStolenChunkserver: an intruder has the certificate of a
// chunkserver. It reads the chunks of the files of its leased jobs, for as long as
// it has them. It reads no others: neither by a chunk's number, nor by the extents
// of another file, nor for another's job. It flushes and evicts nothing by itself,
// and changes no file that has a name.
func TestIntruderOfAStolenChunkserver(t *testing.T) {
	inWorld(t, func(w *world) {
		t, ctx := w.t, w.t.Context()
		before := w.picture()
		// It is the one that has leased the eviction of the own file.
		thief := w.intrude(transport.Peer{Role: transport.RoleChunkserver, Node: "mover-own"})
		thief.number = 1000 // past those of the real one
		thief.open()
		extents := func(file, job uint64) (*wire.ExtentsReply, error) {
			resp, err := thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: file, Limit: 100, Job: job}}})
			return resp.GetExtents(), err
		}
		get := func(stripes []*wire.Stripe, capability []byte) []string {
			var got []string
			for _, s := range stripes {
				for index, ch := range s.Chunks {
					answer, err := chunkRows["Get"].do(ctx, thief.chunks(ch.Device), refs{stripe: s.Id}, ch.Device, uint32(index), capability)
					require.NotContains(t, answer, secret)
					got = append(got, kind(err))
				}
			}
			return got
		}
		job := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: w.own.job}}}).GetJobs().Jobs[0]
		require.Equal(t, "mover-own", job.Holder)
		time.Sleep(20 * time.Second)
		_, err := extents(w.own.file, w.own.job)
		require.Equal(t, "permission denied", kind(err), "its lease has ended")
		_, err = thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_RenewJob{RenewJob: &wire.RenewJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch}}})
		require.NoError(t, err)

		page, err := extents(w.own.file, w.own.job)
		require.NoError(t, err)
		require.Len(t, page.Capabilities, 1)
		require.Equal(t, "ok", outcomes(get(page.Stripes, page.Capabilities[0])))
		for what, b := range map[string][]byte{"none": nil, "that of its job": page.Capabilities[0]} {
			require.Equal(t, "permission denied", outcomes(get(w.stripes, b)), what)
		}
		require.Equal(t, "permission denied", outcomes(get(page.Stripes, nil)))
		for _, of := range []refs{{file: w.own.file}, {file: w.own.file, job: w.foreign.job}, {file: w.own.file, job: w.missing.job},
			{file: w.foreign.file, job: w.own.job}, {file: w.foreign.file, job: w.foreign.job}, {file: w.foreign.file}} {
			_, err := extents(of.file, of.job)
			require.Equal(t, "permission denied", kind(err), "file %x for job %x", of.file, of.job)
		}
		// No other node can read with its capability.
		other := w.intrude(transport.Peer{Role: transport.RoleChunkserver, Node: "n8"})
		for index, ch := range page.Stripes[0].Chunks {
			_, err := chunkRows["Get"].do(ctx, other.chunks(ch.Device), refs{stripe: page.Stripes[0].Id}, ch.Device, uint32(index), page.Capabilities[0])
			require.Equal(t, "permission denied", kind(err))
		}
		// It cannot create work in order to read its files.
		for _, k := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_EVICT} {
			_, err = thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: k, Inodes: []uint64{w.foreign.file}}}})
			require.Equal(t, "permission denied", kind(err))
		}
		s := w.stripes[0]
		_, err = thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_ReportBadChunks{ReportBadChunks: &wire.ReportBadChunks{Chunks: []*wire.BadChunk{
			{Stripe: s.Id, Index: 0, Device: s.Chunks[0].Device, Version: s.Version, Kind: 1}}}}})
		require.NoError(t, err)
		// Nor write.
		for _, content := range [][]byte{nil, []byte("content")} {
			_, err = thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: w.foreign.file, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Content: content}}})
			require.Equal(t, "permission denied", kind(err))
		}
		require.Equal(t, before, w.picture())
		// Its read permission ends with the job.
		_, err = thief.do(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: job.Id, LeaseEpoch: job.LeaseEpoch}}})
		require.NoError(t, err)
		_, err = extents(w.own.file, w.own.job)
		require.Equal(t, "permission denied", kind(err))
	})
}
