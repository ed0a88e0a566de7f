package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// loadFiles is how many files are made by one entry of the log; each is a create
	// and a commit of one stripe.
	loadFiles = 128
	// loadDirFiles is how many files a directory of the load has.
	loadDirFiles = 10_000
	// loaders make files at once, each with a session of its own.
	loaders = 8
)

// Scale fills the state of one metadata server with e.Inodes files of one stripe of
// 4+2 each, by commands through its log, and measures what that takes of disk and
// memory, how long it takes to start on it, and how fast creates and stats are then,
// against the same on an empty state. There is no network in it and one replica:
// what is measured is the log, the state machine and the store.
func Scale(ctx context.Context, e *Env) (lines []Line, err error) {
	s := &scale{dir: filepath.Join(e.Dir, "scale"), clients: e.Clients, last: time.Duration(e.Seconds * float64(time.Second))}
	defer os.RemoveAll(s.dir)
	if err := s.open(ctx, true); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.found(ctx); err != nil {
		return nil, err
	}
	e.Progress("an empty state")
	creates, stats, err := s.rates(ctx)
	if err != nil {
		return nil, err
	}
	e.Progress("loading %d files", e.Inodes)
	began, before := time.Now(), s.made.Load()
	if err := s.load(ctx, e.Inodes); err != nil {
		return nil, err
	}
	inodes := float64(s.made.Load())
	lines = append(lines, Line{Name: e.name("scale-load"), Value: perSecond(inodes-float64(before), time.Since(began)), Unit: "inodes/s"})
	if err := s.close(); err != nil {
		return nil, err
	}
	debug.FreeOSMemory()
	rss := residentBytes(os.Getpid())
	e.Progress("starting on it")
	began = time.Now()
	if err := s.open(ctx, false); err != nil {
		return nil, err
	}
	lines = append(lines, Line{Name: e.name("scale-restart"), Value: time.Since(began).Seconds(), Unit: "s"})
	bytes, err := treeBytes(filepath.Join(s.dir, "node", "state"))
	if err != nil {
		return nil, err
	}
	e.Progress("the full state")
	creates1, stats1, err := s.rates(ctx)
	if err != nil {
		return nil, err
	}
	return append(lines,
		Line{Name: e.name("scale-inodes"), Value: inodes, Unit: "inodes"},
		Line{Name: e.name("scale-disk"), Value: bytes / inodes, Unit: "bytes/inode"},
		Line{Name: e.name("scale-memory"), Value: max(1, residentBytes(os.Getpid())-rss), Unit: "bytes"},
		Line{Name: e.name("scale-create"), Value: creates1, Unit: "ops/s"}.against(creates, "empty state"),
		Line{Name: e.name("scale-stat"), Value: stats1, Unit: "ops/s"}.against(stats, "empty state")), nil
}

// scale is one replica, which is all of its group.
type scale struct {
	dir     string
	clients int
	last    time.Duration // of each measurement
	machine *state.Machine
	store   *raftstore.Store
	stop    context.CancelFunc
	ended   chan error

	sessions []uint64        // one for each loader
	numbers  []uint64        // their requests so far
	devices  []uint32        // that stripes name
	made     atomic.Uint64   // inodes
	dirs     [loaders]uint64 // that rates creates in
}

// scaleCluster is what the cluster of a load is called.
var scaleCluster = moraine.UUID{0x73, 0x63, 0x61, 0x6c, 0x65}

// ApplyEntry implements raftstore.FSM.
func (s *scale) ApplyEntry(kv state.KV, index uint64, entry []byte) (any, error) {
	commands, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	batch, err := s.machine.Begin(kv, index)
	if err != nil {
		return nil, err
	}
	results := make([]state.Result, len(commands))
	for i, c := range commands {
		if results[i], err = batch.Apply(c); err != nil {
			return nil, err
		}
	}
	return results, batch.Flush()
}

// loneStream is the network of a node without peers.
type loneStream struct{ net.Listener }

// Dial implements raftstore.Stream.
func (loneStream) Dial(string, time.Duration) (net.Conn, error) {
	return nil, errors.New("bench: a node without peers")
}

// open starts the replica and waits until it leads.
func (s *scale) open(ctx context.Context, fresh bool) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.machine = state.New(0)
	cfg := raftstore.Config{Dir: filepath.Join(s.dir, "node"), Cluster: scaleCluster, Node: "m1", LogStall: time.Minute,
		LogRetention: time.Nanosecond, Peers: []raftstore.Peer{{ID: "m1", Address: "alone"}}}
	deps := raftstore.Deps{FSM: s, Stream: loneStream{listen}}
	if fresh {
		if err := raftstore.Bootstrap(cfg, deps); err != nil {
			return errors.Join(err, listen.Close())
		}
	}
	if s.store, err = raftstore.New(cfg, deps); err != nil {
		return errors.Join(err, listen.Close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop, s.ended = stop, make(chan error, 1)
	store, ended := s.store, s.ended
	go func() { ended <- store.Run(running) }()
	for {
		if _, leads := s.store.Leader(); leads {
			return nil
		}
		select {
		case err := <-s.ended:
			s.store = nil
			return fmt.Errorf("bench: the replica ended: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *scale) close() error {
	if s.store == nil {
		return nil
	}
	s.store = nil
	s.stop()
	return <-s.ended
}

// found begins the cluster: sessions, directories, and devices.
func (s *scale) found(ctx context.Context) error {
	if _, err := s.propose(ctx, &statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: scaleCluster[:], Incarnation: 1, Names: true}}},
		&statepb.Command{Op: &statepb.Command_SetFeatureLevel{SetFeatureLevel: &statepb.SetFeatureLevel{Level: moraine.FeatureLevel}}}); err != nil {
		return err
	}
	for i := range 6 {
		node := fmt.Sprint("n", i+1)
		res, err := s.propose(ctx, &statepb.Command{Caller: &statepb.Caller{Node: node, Role: "chunkserver", Scope: "/"},
			Op: &statepb.Command_Request{Request: &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{
				Host: &wire.Host{Id: node, Addresses: []string{"127.0.0.1:1"}, Devices: []*wire.Device{{Uuid: fmt.Appendf(nil, "device of %-6s", node), Capacity: 1 << 50}}}}}}}})
		if err != nil {
			return err
		}
		s.devices = append(s.devices, res[0].Response.GetRegisterHost().GetDevices()[0].GetId())
	}
	for i := range loaders {
		nonce := fmt.Appendf(nil, "session %8d", i)
		res, err := s.propose(ctx, &statepb.Command{Caller: s.caller(), Op: &statepb.Command_Request{Request: &wire.MetaRequest{
			Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: "bench", Scope: "/", Nonce: nonce}}}}})
		if err != nil {
			return err
		}
		s.sessions, s.numbers = append(s.sessions, res[0].Response.GetSession().GetSession()), append(s.numbers, 0)
		if s.dirs[i], err = s.mkdir(ctx, i, uint64(moraine.RootInode), fmt.Sprintf("rates-%d", i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *scale) caller() *statepb.Caller {
	return &statepb.Caller{Node: "bench", Role: "client", Scope: "/"}
}

// request makes a numbered command of a loader's session.
func (s *scale) request(loader int, req *wire.MetaRequest) *statepb.Command {
	s.numbers[loader]++
	n := s.numbers[loader]
	req.Session, req.Number = s.sessions[loader], n
	if n > 2*loadFiles {
		req.AckedBelow = n - 2*loadFiles
	}
	return &statepb.Command{Caller: s.caller(), Op: &statepb.Command_Request{Request: req}}
}

// propose has one entry applied; an answer that is an error is one.
func (s *scale) propose(ctx context.Context, commands ...*statepb.Command) ([]state.Result, error) {
	encoded := make([][]byte, len(commands))
	for i, c := range commands {
		c.Version, c.WallNanos = 1, time.Now().UnixNano()
		var err error
		if encoded[i], err = proto.Marshal(c); err != nil {
			return nil, err
		}
	}
	answer, err := s.store.Propose(ctx, state.EncodeEntry(encoded))
	if err != nil {
		return nil, err
	}
	results := answer.([]state.Result)
	for _, r := range results {
		if e := r.Response.GetError(); e != nil {
			return nil, fmt.Errorf("bench: a command of the load was refused: %s", e.GetText())
		}
	}
	return results, nil
}

func (s *scale) mkdir(ctx context.Context, loader int, parent uint64, name string) (uint64, error) {
	res, err := s.propose(ctx, s.request(loader, create(parent, name, wire.FileType_FILE_TYPE_DIRECTORY)))
	if err != nil {
		return 0, err
	}
	s.made.Add(1)
	return res[0].Response.GetEntry().GetAttr().GetInode(), nil
}

func create(parent uint64, name string, typ wire.FileType) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: parent, Name: name, Type: typ, Mode: 0o644, Exclusive: true}}}
}

// load makes files until there are so many inodes.
func (s *scale) load(ctx context.Context, inodes uint64) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range loaders {
		g.Go(func() error {
			for n := 0; s.made.Load() < inodes; n++ {
				dir, err := s.mkdir(ctx, i, uint64(moraine.RootInode), fmt.Sprintf("load-%d-%07d", i, n))
				if err != nil {
					return err
				}
				for f := 0; f < loadDirFiles && s.made.Load() < inodes; f += loadFiles {
					if err := s.files(ctx, i, dir, f); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// files makes loadFiles files, with content, in two entries.
func (s *scale) files(ctx context.Context, loader int, dir uint64, first int) error {
	commands := []*statepb.Command{s.request(loader, &wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: loadFiles}}})}
	for f := range loadFiles {
		commands = append(commands, s.request(loader, create(dir, fmt.Sprintf("sample-%08d.tar", first+f), wire.FileType_FILE_TYPE_REGULAR)))
	}
	made, err := s.propose(ctx, commands...)
	if err != nil {
		return err
	}
	s.made.Add(loadFiles)
	commands = commands[:0]
	for f := range uint64(loadFiles) {
		commands = append(commands, s.request(loader, s.commit(made[f+1].Response.GetEntry().GetAttr().GetInode(), made[0].Response.GetGrant().GetFirst()+f)))
	}
	// A session has a few hundred grants at most.
	commands = append(commands, s.request(loader, &wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: made[0].Response.GetGrant().GetFirst()}}}))
	_, err = s.propose(ctx, commands...)
	return err
}

// commit gives a file one stripe of 4+2.
func (s *scale) commit(inode, id uint64) *wire.MetaRequest {
	const length = 4 * moraine.DefaultChunkSize
	stripe := &wire.Stripe{Id: id, Scheme: &wire.Scheme{K: 4, M: 2}, Length: length}
	for i, d := range s.devices {
		stripe.Chunks = append(stripe.Chunks, &wire.ChunkState{Device: d, Crc: uint32(id)*2654435761 + uint32(i), Level: uint32(moraine.NVMe)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe}, Extents: []*wire.Extent{{Length: length, Stripe: id}}}}}
}

// rates returns how many creates and stats a second there are: creates by loaders
// that fill entries with as many as there are clients, stats of inodes at random.
func (s *scale) rates(ctx context.Context) (creates, stats float64, err error) {
	each := max(1, s.clients/loaders)
	var done atomic.Int64
	began := time.Now()
	g, working := errgroup.WithContext(ctx)
	for i := range loaders {
		g.Go(func() error {
			for time.Since(began) < s.last {
				var commands []*statepb.Command
				for range each {
					commands = append(commands, s.request(i, create(s.dirs[i], fmt.Sprintf("file-%09d", s.numbers[i]), wire.FileType_FILE_TYPE_REGULAR)))
				}
				if _, err := s.propose(working, commands...); err != nil {
					return err
				}
				s.made.Add(uint64(each))
				done.Add(int64(each))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	creates = perSecond(float64(done.Load()), time.Since(began))
	done.Store(0)
	began = time.Now()
	g, _ = errgroup.WithContext(ctx)
	for i := range loaders {
		g.Go(func() error { return s.stats(rand.New(rand.NewPCG(1, uint64(i))), began, &done) })
	}
	err = g.Wait()
	return creates, perSecond(float64(done.Load()), time.Since(began)), err
}

func (s *scale) stats(rng *rand.Rand, began time.Time, done *atomic.Int64) error {
	for time.Since(began) < s.last {
		req := &wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: uint64(moraine.RootInode) + 1 + rng.Uint64N(s.made.Load())}}}
		err := s.store.View(func(r state.Reader, _ uint64) error {
			_, err := s.machine.Read(r, s.caller(), req)
			return err
		})
		if err != nil {
			return err
		}
		done.Add(1)
	}
	return nil
}

// treeBytes returns how much of the disk is taken by the files below a directory.
func treeBytes(dir string) (bytes float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += float64(info.Size())
		}
		return err
	})
	return bytes, err
}

// residentBytes returns the memory of a process, 0 where that is gone.
func residentBytes(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(data))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize())
}
