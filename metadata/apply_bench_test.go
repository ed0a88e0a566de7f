package metadata_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// BenchmarkApply makes a single replica apply the commands of 64 sessions, each in a directory of
// its own, half of them in each entry. This is every replica's work for each command, without
// network and service. cpu-us/op is the CPU time of the whole process.
func BenchmarkApply(b *testing.B) {
	for _, what := range []string{"create", "rename", "unlink", "commit", "claim", "claim-same"} {
		b.Run(what, func(b *testing.B) { benchApply(b, what) })
	}
}

const (
	applySessions = 64
	applyGroup    = applySessions / 2
	applyGrant    = 256 // stripes
)

func benchApply(b *testing.B, what string) {
	a := newApplier(b)
	names := make([]string, (b.N+applySessions-1)/applySessions)
	for i := range names {
		names[i] = fmt.Sprintf("file-%07d", i)
	}
	var before, measured []*wire.MetaRequest
	each := func(list *[]*wire.MetaRequest, make func(session, n int) *wire.MetaRequest) {
		for n := range names {
			for s := range applySessions {
				*list = append(*list, a.request(s, make(s, n)))
			}
		}
	}
	created := func(s, n int) *wire.MetaRequest {
		return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: a.dirs[s], Name: names[n], Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644, Exclusive: true}}}
	}
	switch what {
	case "create":
		each(&measured, created)
	case "rename":
		each(&before, created)
		each(&measured, func(s, n int) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Rename{Rename: &wire.Rename{Parent: a.dirs[s], Name: names[n], NewParent: a.dirs[s], NewName: names[n] + ".1"}}}
		})
	case "unlink":
		each(&before, created)
		each(&measured, func(s, n int) *wire.MetaRequest {
			return &wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: a.dirs[s], Name: names[n]}}}
		})
	case "commit":
		files := a.files(len(names))
		each(&measured, func(s, n int) *wire.MetaRequest { return a.commit(s, n, files[s]) })
	case "claim", "claim-same": // as many groups as a rank may have, which no other rank has, or each
		a.openRun()
		each(&before, a.begin)
		each(&measured, func(s, n int) *wire.MetaRequest { return a.claim(s, n, what == "claim") })
	}
	a.apply(before)
	entries := a.encode(measured)
	cpu := processTime(b)
	b.ReportAllocs()
	b.ResetTimer()
	for _, e := range entries {
		a.propose(e)
	}
	b.StopTimer()
	b.ReportMetric(float64(processTime(b)-cpu)/1e3/float64(len(measured)), "cpu-us/op")
	bytes := 0
	for _, e := range entries {
		bytes += len(e)
	}
	b.ReportMetric(float64(bytes)/float64(len(measured)), "log-B/op")
}

// threadTime returns the CPU time of this thread.
func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // fails only for unknown arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processTime returns the CPU time of the process, in nanoseconds.
func processTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// applier is a group of one replica with the data of its sessions.
type applier struct {
	b        testing.TB
	machine  *state.Machine
	store    *raftstore.Store
	sessions []uint64
	numbers  []uint64
	dirs     []uint64
	run      uint64 // of openRun
	devices  []uint32
	grants   [applySessions][]uint64 // first stripes of each session's
	// note, if set, receives how long applying an entry took.
	note func(commands []*statepb.Command, took, cpu time.Duration)
}

// ApplyEntry implements raftstore.FSM.
func (a *applier) ApplyEntry(kv kvtx.KV, index uint64, entry []byte) (any, error) {
	commands, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	batch, err := a.machine.Begin(kv, index)
	if err != nil {
		return nil, err
	}
	if a.note != nil {
		runtime.LockOSThread()
		began, cpu := time.Now(), threadTime()
		defer func() {
			a.note(commands, time.Since(began), threadTime()-cpu)
			runtime.UnlockOSThread()
		}()
	}
	results := make([]state.Result, len(commands))
	for i, c := range commands {
		if results[i], err = batch.Apply(c); err != nil {
			return nil, err
		}
	}
	return results, batch.Flush()
}

// noStream is the network of a replica without peers.
type noStream struct{ net.Listener }

func (noStream) Dial(string, time.Duration) (net.Conn, error) { return nil, errors.New("no peers") }

func newApplier(b testing.TB) *applier {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	a := &applier{b: b, machine: state.New(0)}
	cfg := raftstore.Config{Dir: b.TempDir(), Cluster: clusterUUID, Node: "m1", LogStall: time.Minute, BallastBytes: -1,
		Peers: []raftstore.Peer{{ID: "m1", Address: "alone"}}}
	deps := raftstore.Deps{FS: vfs.OS{}, FSM: a, Stream: noStream{listen}}
	require.NoError(b, raftstore.Bootstrap(cfg, deps))
	a.store, err = raftstore.New(cfg, deps)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.store.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-ended })
	for {
		if _, leads := a.store.Leader(); leads {
			break
		}
		time.Sleep(time.Millisecond)
	}
	a.found()
	return a
}

// found creates the cluster: devices, sessions, and a directory for each.
func (a *applier) found() {
	a.command(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: clusterUUID[:], Incarnation: 1}}})
	a.command(&statepb.Command{Op: &statepb.Command_SetFeatureLevel{SetFeatureLevel: &statepb.SetFeatureLevel{Level: moraine.FeatureLevel}}})
	for i := range 3 {
		node := fmt.Sprint("n", i+1)
		r := a.command(&statepb.Command{Caller: &statepb.Caller{Node: node, Role: "chunkserver", Scope: "/"},
			Op: &statepb.Command_Request{Request: &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
				Host: &wire.Host{Id: node, Addresses: []string{"127.0.0.1:1"}, Devices: []*wire.Device{{Uuid: fmt.Appendf(nil, "device of %-6s", node), Capacity: 1 << 50}}}}}}}})
		a.devices = append(a.devices, r.GetRegisterHost().GetDevices()[0].GetId())
	}
	for i := range applySessions {
		r := a.command(a.of(&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: "c1", Scope: "/", Drawn: uint64(i + 1), Nonce: fmt.Appendf(nil, "session %8d", i), Leases: true}}}))
		a.sessions, a.numbers = append(a.sessions, r.GetSession().GetSession()), append(a.numbers, 0)
	}
	parent := a.mkdir(0, uint64(moraine.RootInode), "bench")
	for i := range applySessions {
		a.dirs = append(a.dirs, a.mkdir(i, parent, fmt.Sprint("client-", i)))
	}
}

func (a *applier) of(req *wire.MetaRequest) *statepb.Command {
	return &statepb.Command{Caller: &statepb.Caller{Node: "c1", Role: "client", Scope: "/"}, Op: &statepb.Command_Request{Request: req}}
}

// request numbers a session's request. The session waits for each answer.
func (a *applier) request(session int, req *wire.MetaRequest) *wire.MetaRequest {
	a.numbers[session]++
	req.Session, req.Number, req.AckedBelow = a.sessions[session], a.numbers[session], a.numbers[session]
	return req
}

func (a *applier) mkdir(session int, parent uint64, name string) uint64 {
	r := a.command(a.of(a.request(session, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
		Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755}}})))
	return r.GetEntry().GetAttr().GetInode()
}

// files makes a file for each session to append to, and gets grants for commits to it.
func (a *applier) files(commits int) (inodes []uint64) {
	for s := range applySessions {
		r := a.command(a.of(a.request(s, &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{
			Parent: a.dirs[s], Name: "appended", Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644}}})))
		inodes = append(inodes, r.GetEntry().GetAttr().GetInode())
		for n := 0; n < commits; n += applyGrant {
			r := a.command(a.of(a.request(s, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{
				Inode: inodes[s], Count: applyGrant, Scheme: &wire.Scheme{K: 1, M: 2}}}})))
			a.grants[s] = append(a.grants[s], r.GetGrant().GetFirst())
		}
	}
	return inodes
}

// commit appends an x3 stripe to a session's file.
func (a *applier) commit(session, n int, inode uint64) *wire.MetaRequest {
	id := a.grants[session][n/applyGrant] + uint64(n%applyGrant)
	s := &wire.Stripe{Id: id, Scheme: &wire.Scheme{K: 1, M: 2}, Version: 1, Length: moraine.BlockSize}
	for _, d := range a.devices {
		s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Level: uint32(moraine.NVMe)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: inode, Stripes: []*wire.Stripe{s},
		Extents: []*wire.Extent{{Length: moraine.BlockSize, Stripe: id}}, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Level: uint32(moraine.NVMe)}}}
}

// openRun makes a run, which all sessions join.
func (a *applier) openRun() {
	for s := range applySessions {
		r := a.command(a.of(a.request(s, &wire.MetaRequest{Op: &wire.MetaRequest_OpenRun{OpenRun: &wire.OpenRun{Parent: a.dirs[0], Name: "run", Launch: "one"}}})))
		a.run = r.GetRun().GetRun().GetId()
	}
}

// begin begins a rank's part of step n: each session is a rank.
func (a *applier) begin(session, n int) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_BeginStep{BeginStep: &wire.BeginStep{Key: a.step(n), Rank: uint32(session), World: applySessions}}}
}

func (a *applier) step(n int) *wire.StepKey {
	return &wire.StepKey{Run: a.run, Attempt: 1, Step: uint64(n)}
}

// claim claims the groups of a rank, of its own or those of all ranks.
func (a *applier) claim(session, n int, own bool) *wire.MetaRequest {
	op := &wire.ClaimSlices{Key: a.step(n), Rank: uint32(session)}
	if !own {
		session = 0
	}
	for g := range wire.MaxClaims {
		id := sha256.Sum256(fmt.Append(nil, g, session))
		op.Groups = append(op.Groups, id[:wire.ClaimBytes])
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_ClaimSlices{ClaimSlices: op}}
}

// command applies one command in an entry of its own.
func (a *applier) command(cmd *statepb.Command) *wire.MetaResponse {
	return a.propose(state.EncodeEntry([][]byte{a.marshal(cmd)}))[0].Response
}

func (a *applier) marshal(cmd *statepb.Command) []byte {
	cmd.Version, cmd.WallNanos = 1, time.Now().UnixNano()
	p, err := proto.Marshal(cmd)
	require.NoError(a.b, err)
	return p
}

// encode packs requests into entries.
func (a *applier) encode(reqs []*wire.MetaRequest) (entries [][]byte) {
	for len(reqs) > 0 {
		var commands [][]byte
		for _, r := range reqs[:applyGroup] {
			commands = append(commands, a.marshal(a.of(r)))
		}
		entries, reqs = append(entries, state.EncodeEntry(commands)), reqs[applyGroup:]
	}
	return entries
}

func (a *applier) apply(reqs []*wire.MetaRequest) {
	for _, e := range a.encode(reqs) {
		a.propose(e)
	}
}

func (a *applier) propose(entry []byte) []state.Result {
	answer, err := a.store.Propose(a.b.Context(), entry)
	require.NoError(a.b, err)
	results := answer.([]state.Result)
	for _, r := range results {
		if e := r.Response.GetError(); e != nil {
			a.b.Fatalf("%v: %v", e.GetOp(), e.GetText())
		}
	}
	return results
}
