package agentproto_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

var update = flag.Bool("update", false, "write the golden file")

// TestGoldenMessages compares every message, with all its fields, with the golden file: programs
// in other languages write and read these bytes.
func TestGoldenMessages(t *testing.T) {
	part := agentproto.Part{Run: "/runs/a", Attempt: 2, Step: 100, Rank: 1, World: 8, Bytes: 4096, State: agentproto.Failed, Written: 1024, Error: "why"}
	messages := []any{
		agentproto.Request{Hello: &agentproto.Hello{Version: agentproto.Version}},
		agentproto.Reply{Hello: &agentproto.HelloReply{Version: 1, Memory: 1 << 30, Used: 1 << 20}},
		agentproto.Request{Open: &agentproto.Open{Run: "/runs/a", Rank: 1, World: 8, Launch: "slurm-7", Job: "7", Restart: 3, Takeover: true, Bytes: 4096}},
		agentproto.Reply{Open: &agentproto.OpenReply{RunID: 1 << 40, Attempt: 2}},
		agentproto.Request{Begin: &agentproto.Begin{Step: 100, Bytes: 4096, Reserve: 4000, Level: "memory", SealTimeoutMillis: 600000, NoWait: true, Supersede: true}},
		agentproto.Reply{Begin: &agentproto.BeginReply{Slot: "slot-00112233aabbccdd", Bytes: 2 << 20,
			Failed: []agentproto.Failure{{Step: 99, Error: *agentproto.ErrorOf(&moraine.Error{Op: "agent", Kind: moraine.Aborted})}}}},
		agentproto.Request{Progress: &agentproto.Progress{Run: "/runs/a", Rank: 1, Attempt: 2, Step: 100}},
		agentproto.Reply{Progress: &agentproto.ProgressReply{State: agentproto.Local, Written: 1024, Bytes: 4096}},
		agentproto.Request{Seal: &agentproto.Seal{Step: 100, SumsAt: 8192,
			Tensors: []agentproto.Tensor{{Name: "w", DType: "BF16", Shape: []int64{2, 3}, Global: []int64{4, 3}, Offset: []int64{2, 0}, At: 64, Bytes: 12}},
			Blobs:   []agentproto.Blob{{Name: "rng", At: 128, Bytes: 5}}}},
		agentproto.Reply{Seal: &agentproto.SealReply{}},
		agentproto.Request{Abort: &agentproto.Abort{Step: 100, Reason: "why"}},
		agentproto.Reply{Abort: &agentproto.AbortReply{}},
		agentproto.Request{Wait: &agentproto.Wait{Run: "/runs/a", Rank: 1, Attempt: 2, Step: 100, Level: "nvme", TimeoutMillis: 1000}},
		agentproto.Reply{Wait: &agentproto.WaitReply{Level: "nvme", Path: "attempt-2/step-100", Bytes: 12}},
		agentproto.Request{Read: &agentproto.Read{Run: "/runs/a", Attempt: 2, Step: 100, Rank: 1}},
		agentproto.Reply{Read: &agentproto.ReadReply{Bytes: 2 << 20, Seal: agentproto.Seal{Step: 100, Tensors: []agentproto.Tensor{{Name: "w", DType: "U8", Shape: []int64{4}, Bytes: 4}}}}},
		agentproto.Request{Push: &agentproto.Push{Run: "/runs/llama", DeadlineMillis: 25000}},
		agentproto.Reply{Push: &agentproto.PushReply{Parts: []agentproto.Part{part}}},
		agentproto.Request{Status: &agentproto.Status{}},
		agentproto.Reply{Status: &agentproto.StatusReply{Memory: 1 << 30, Used: 1 << 20, Parts: []agentproto.Part{part},
			Runs: []agentproto.RunStatus{{Run: "/runs/a", Saves: 3, Bytes: 12288, StallSeconds: 0.25, Failed: 1, Restores: 2, RestoreSeconds: 3.5,
				Levels: []agentproto.LevelStatus{{Level: "nvme", Attempt: 2, Step: 98, Committed: 1700000000000000000, LostSteps: 2, LostSeconds: 1.5}}}}}},
		agentproto.Request{Open: &agentproto.Open{Run: "/runs/a", World: 1, ReadOnly: true}},
		agentproto.Request{Resolve: &agentproto.Resolve{Step: 100, Exact: true, Fix: true}},
		agentproto.Request{Resolve: &agentproto.Resolve{Level: "memory", Tag: "best", Healthy: true, Before: &agentproto.StepRef{Attempt: 2, Step: 100}, Fallback: true}},
		agentproto.Reply{Resolve: &agentproto.ResolveReply{Attempt: 2, Step: 98, World: 8, Level: "memory", Path: "attempt-2/step-98", Bytes: 12,
			Skipped: []agentproto.Skipped{{Attempt: 2, Step: 99, Error: *agentproto.ErrorOf(&moraine.Error{Op: "agent", Kind: moraine.Corrupt})}}}},
		agentproto.Reply{Resolve: &agentproto.ResolveReply{Attempt: 2, Step: 100, World: 8, Level: "nvme", Path: "attempt-2/step-100", Bytes: 12, Blobs: []agentproto.BlobInfo{{Rank: 1, Name: "rng", Bytes: 5}}}},
		agentproto.Request{Tensors: &agentproto.Tensors{After: "w", Limit: 10}},
		agentproto.Reply{Tensors: &agentproto.TensorsReply{Tensors: []agentproto.TensorInfo{{Name: "x", DType: "BF16", Shape: []int64{4, 3}}}}},
		agentproto.Request{Fetch: &agentproto.Fetch{Bytes: 4096, Slices: []agentproto.Slice{{Name: "x", Offset: []int64{0, 0}, Shape: []int64{4, 3}, At: 64, Bytes: 24}},
			Blobs: []agentproto.FetchBlob{{Rank: 1, Name: "rng", At: 128, Bytes: 5}}, Reuse: true}},
		agentproto.Reply{Fetch: &agentproto.FetchReply{Slot: "slot-00112233aabbccdd", FromNode: 24}},
		agentproto.Request{Stat: &fileproto.Stat{Path: "/data/a"}},
		agentproto.Reply{Stat: &fileproto.Entry{Name: "a", Type: fileproto.File, Bytes: 12, Modified: 1700000000000000000, Version: "2a-3"}},
		agentproto.Request{List: &fileproto.List{Path: "/data", After: "a", Limit: 10}},
		agentproto.Reply{List: &fileproto.ListReply{Entries: []fileproto.Entry{{Name: "b", Type: fileproto.Directory, Modified: 1700000000000000000, Version: "2b-1"}}}},
		agentproto.Request{FetchFile: &fileproto.FetchFile{Path: "/data/a", Offset: 4096, Bytes: 4096, Reuse: true}},
		agentproto.Reply{FetchFile: &fileproto.FetchFileReply{Slot: "slot-00112233aabbccdd", Bytes: 4096, Size: 12288, Version: "2a-3"}},
		agentproto.Request{Create: &fileproto.Create{Path: "/data/a", Bytes: 8 << 20, Exclusive: true, Parents: true}},
		agentproto.Reply{Create: &fileproto.CreateReply{Slot: "slot-00112233aabbccdd", Bytes: 8 << 20}},
		agentproto.Request{Append: &fileproto.Append{Bytes: 4096}},
		agentproto.Reply{Append: &fileproto.AppendReply{Bytes: 12288}},
		agentproto.Request{Commit: &fileproto.Commit{}},
		agentproto.Reply{Commit: &fileproto.Entry{Name: "a", Type: fileproto.File, Bytes: 12288, Modified: 1700000000000000000, Version: "2b-1"}},
		agentproto.Request{Mkdir: &fileproto.Mkdir{Path: "/data/b", Parents: true, Exclusive: true}},
		agentproto.Reply{Mkdir: &fileproto.Entry{Name: "b", Type: fileproto.Directory, Modified: 1700000000000000000, Version: "2c-1"}},
		agentproto.Request{Clone: &fileproto.Clone{From: "/data/a", To: "/data/b/a", Exclusive: true, Parents: true}},
		agentproto.Reply{Clone: &fileproto.Entry{Name: "a", Type: fileproto.File, Bytes: 12288, Modified: 1700000000000000000, Version: "2d-1"}},
		agentproto.Request{Rename: &fileproto.Rename{From: "/data/b/a", To: "/data/c", Exclusive: true}},
		agentproto.Reply{Rename: &fileproto.RenameReply{}},
		agentproto.Request{Remove: &fileproto.Remove{Path: "/data/b", Tree: true}},
		agentproto.Reply{Remove: &fileproto.RemoveReply{}},
		agentproto.Reply{Error: agentproto.ErrorOf(&moraine.Error{Op: "agent.Begin", Kind: moraine.Busy})},
	}
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	for _, m := range messages {
		require.NoError(t, enc.Encode(m))
	}
	golden := filepath.Join("testdata", "messages.jsonl")
	if *update {
		require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// TestErrorsKeepTheirKind: each kind of error is the same after the way to the trainer.
func TestErrorsKeepTheirKind(t *testing.T) {
	for k := moraine.Internal; k.String() != "unknown error"; k++ {
		reply := agentproto.Reply{Error: agentproto.ErrorOf(&moraine.Error{Op: "agent", Kind: k})}
		require.Equal(t, k, moraine.KindOf(reply.Err()))
	}
}

// TestDescriptorsTravel: the descriptors of a reply arrive with it, open and no more than sent.
func TestDescriptorsTravel(t *testing.T) {
	c, b := pair(t)
	a := agentproto.NewConn(c)
	f, err := os.Create(filepath.Join(t.TempDir(), "slot"))
	require.NoError(t, err)
	_, err = f.WriteString("bytes")
	require.NoError(t, err)
	go func() {
		_ = a.Send(agentproto.Reply{Begin: &agentproto.BeginReply{Slot: "s"}}, f)
		_ = a.Send(agentproto.Reply{Seal: &agentproto.SealReply{}})
	}()
	var reply agentproto.Reply
	files, err := b.Receive(&reply)
	require.NoError(t, err)
	require.Len(t, files, 1)
	got := make([]byte, 5)
	_, err = files[0].ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "bytes", string(got))
	require.NoError(t, files[0].Close())
	files, err = b.Receive(&reply)
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, f.Close())
}

// TestFramesWithinBounds: a receiver counts what a frame would become before it decodes it, and does not wait for the
// rest of one without end.
func TestFramesWithinBounds(t *testing.T) {
	c, b := pair(t)
	send := func(body string) {
		_, err := c.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...))
		require.NoError(t, err)
	}
	for body, entries := range map[string]int{
		`{"seal":{"step":1,"tensors":[{"name":"a","shape":[1,2,3,4]},{"name":",,[[\\\"[,","shape":[5]}],"blobs":[{"name":"b"}]}}`: 3,
		`{"seal":{"tensors":[0,0,[0,0],{}]}}`:         4,
		`{"seal":{"tensors":[[],[]],"tensors":[{}]}}`: 3,
		`{"seal":{}}`: 0,
		`]]{`:         0, // no JSON
		`}}}[[,`:      0,
	} {
		for _, most := range []int{max(entries, 1), entries - 1} {
			if most <= 0 {
				continue // no bound
			}
			send(body)
			var admitted uint32
			_, err := b.ReceiveWithin(new(agentproto.Request), agentproto.FrameBounds{Bytes: 1000, Entries: most,
				Admit: func(n uint32) error { admitted = n; return nil }})
			require.Equal(t, uint32(len(body)), admitted)
			if most < entries {
				require.ErrorIs(t, err, moraine.InvalidArgument)
				require.ErrorContains(t, err, fmt.Sprintf("%d entries; %d at most", entries, most))
			} else if err != nil {
				require.NotContains(t, err.Error(), "at most", body)
			}
		}
	}
	_, err := c.Write([]byte{1})
	require.NoError(t, err)
	_, err = b.ReceiveWithin(new(agentproto.Request), agentproto.FrameBounds{Bytes: 1000, Patience: time.Millisecond})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (*net.UnixConn, *agentproto.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	d, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = d.Close() })
	return c.(*net.UnixConn), agentproto.NewConn(d.(*net.UnixConn))
}

// FuzzReceive: no bytes make a reader panic, or keep descriptors.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, '{', '}'})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte("\x03\x00\x00\x00]]{"))
	f.Fuzz(func(t *testing.T, p []byte) {
		a, b := pair(t)
		go func() { _, _ = a.Write(p); _ = a.CloseWrite() }()
		var req agentproto.Request
		_, _ = b.ReceiveWithin(&req, agentproto.FrameBounds{Bytes: 1 << 20, Entries: 10})
	})
}
