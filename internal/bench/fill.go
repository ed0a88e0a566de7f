package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// fillDirFiles is how many files a directory of the load has, fillDirs how many
	// such directories their parent has.
	fillDirFiles = 1000
	fillDirs     = 1000
	// fillDevices is how many devices the stripes of the load name, each on a host
	// of its own.
	fillDevices = 6
	// fillEntryFiles is how many files one entry makes.
	fillEntryFiles = 125
)

// A filler makes a large state: files of one stripe of 4+2 each. It applies the
// commands of a client through the state machine's Apply, many in each entry.
// It writes no log and encodes no entries.
type filler struct {
	machine *state.Machine
	cluster moraine.UUID
	session uint64
	number  uint64 // of the session's last request
	devices []uint32
	every   uint64 // one file in so many has content
	large   uint64 // files of the large directory
	made    uint64 // inodes
	files   uint64 // files among them
	above   uint64 // parent of the current directories of files
}

// fillPath returns the path of a file of the load.
func fillPath(file uint64) string {
	dir := file / fillDirFiles
	return fmt.Sprintf("/load-%04d/shard-%04d/sample-%08d.tar", dir/fillDirs, dir%fillDirs, file%fillDirFiles)
}

// one applies commands as one entry. fn gets a function that applies a command; a
// refused command is an error.
func (f *filler) one(l *raftstore.Loader, fn func(apply applyFunc) error) error {
	return l.Apply(func(kv kvtx.KV, index uint64) error {
		batch, err := f.machine.Begin(kv, index)
		if err != nil {
			return err
		}
		err = fn(func(c *statepb.Command) (*wire.MetaResponse, error) {
			c.Version, c.WallNanos = 1, time.Now().UnixNano()
			res, err := batch.Apply(c)
			if e := res.Response.GetError(); err == nil && e != nil {
				err = fmt.Errorf("bench: command of the load refused: %s", e.GetText())
			}
			return res.Response, err
		})
		if err != nil {
			return err
		}
		return batch.Flush()
	})
}

// found sets up the cluster: its devices, and a session that makes files.
func (f *filler) found(l *raftstore.Loader) error {
	return f.one(l, func(apply applyFunc) error {
		for _, c := range []*statepb.Command{
			{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: f.cluster[:], Incarnation: 1}}},
			{Op: &statepb.Command_SetFeatureLevel{SetFeatureLevel: &statepb.SetFeatureLevel{Level: moraine.FeatureLevel}}},
		} {
			if _, err := apply(c); err != nil {
				return err
			}
		}
		for i := range fillDevices {
			node := fmt.Sprint("n", i+1)
			host := &wire.Host{Id: node, Addresses: []string{"127.0.0.1:1"}, Devices: []*wire.Device{{Uuid: fmt.Appendf(nil, "device of %-6s", node), Capacity: 1 << 50}}}
			res, err := apply(&statepb.Command{Caller: &statepb.Caller{Node: node, Role: "chunkserver", Scope: "/"}, Op: request(
				&wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: host}}})})
			if err != nil {
				return err
			}
			f.devices = append(f.devices, res.GetRegisterHost().GetDevices()[0].GetId())
		}
		res, err := apply(&statepb.Command{Caller: fillCaller, Op: request(
			&wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: "bench", Scope: "/", Drawn: 1, Nonce: []byte("load session 001")}}})})
		f.session = res.GetSession().GetSession()
		return err
	})
}

var fillCaller = &statepb.Caller{Node: "bench", Role: "client", Scope: "/"}

func request(req *wire.MetaRequest) *statepb.Command_Request {
	return &statepb.Command_Request{Request: req}
}

type applyFunc func(*statepb.Command) (*wire.MetaResponse, error)

// own makes a numbered command of the session, which has the answers to all earlier
// ones.
func (f *filler) own(req *wire.MetaRequest) *statepb.Command {
	f.number++
	req.Session, req.Number, req.AckedBelow = f.session, f.number, f.number
	return &statepb.Command{Caller: fillCaller, Op: request(req)}
}

// fill makes files, and directories for them, until there are so many inodes, and
// ends the session.
func (f *filler) fill(ctx context.Context, l *raftstore.Loader, inodes uint64, report func(made uint64)) error {
	if err := f.found(l); err != nil {
		return err
	}
	if err := f.largeDir(ctx, l, report); err != nil {
		return err
	}
	inodes += f.made
	for dir := uint64(0); f.made < inodes; dir++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f.dir(l, dir, inodes); err != nil {
			return err
		}
		report(f.made)
	}
	return f.one(l, func(apply applyFunc) error {
		_, err := apply(f.own(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}}))
		return err
	})
}

// largeDirectory is the directory of the load that has Env.Large files, all empty.
const largeDirectory = "load-large"

// largeDir makes the large directory, if the load has one.
func (f *filler) largeDir(ctx context.Context, l *raftstore.Loader, report func(made uint64)) error {
	if f.large == 0 {
		return nil
	}
	var dir uint64
	err := f.one(l, func(apply applyFunc) (err error) {
		dir, err = f.create(apply, uint64(moraine.RootInode), largeDirectory, wire.FileType_FILE_TYPE_DIRECTORY)
		return err
	})
	for i := uint64(0); i < f.large && err == nil; i += fillEntryFiles {
		report(f.made)
		err = errors.Join(ctx.Err(), f.one(l, func(apply applyFunc) error {
			for n := i; n < min(i+fillEntryFiles, f.large); n++ {
				if _, err := f.create(apply, dir, fmt.Sprintf("sample-%08d.tar", n), wire.FileType_FILE_TYPE_REGULAR); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return err
}

// dir makes a directory and its files, in some entries.
func (f *filler) dir(l *raftstore.Loader, n, inodes uint64) error {
	var dir, first uint64
	err := f.one(l, func(apply applyFunc) (err error) {
		if n%fillDirs == 0 {
			if f.above, err = f.create(apply, uint64(moraine.RootInode), fmt.Sprintf("load-%04d", n/fillDirs), wire.FileType_FILE_TYPE_DIRECTORY); err != nil {
				return err
			}
		}
		dir, err = f.create(apply, f.above, fmt.Sprintf("shard-%04d", n%fillDirs), wire.FileType_FILE_TYPE_DIRECTORY)
		if err != nil {
			return err
		}
		res, err := apply(f.own(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Count: fillDirFiles}}}))
		first = res.GetGrant().GetFirst()
		return err
	})
	for i := uint64(0); i < fillDirFiles && err == nil; i += fillEntryFiles {
		err = f.one(l, func(apply applyFunc) error {
			for n := i; n < i+fillEntryFiles && f.made < inodes; n++ {
				if err := f.file(apply, dir, n, first+n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return err
	}
	return f.one(l, func(apply applyFunc) error {
		_, err := apply(f.own(&wire.MetaRequest{Op: &wire.MetaRequest_EndGrant{EndGrant: &wire.EndGrant{First: first}}}))
		return err
	})
}

// file makes a file, and gives one file in f.every the stripe of that number.
func (f *filler) file(apply applyFunc, dir, n, stripe uint64) error {
	inode, err := f.create(apply, dir, fmt.Sprintf("sample-%08d.tar", n), wire.FileType_FILE_TYPE_REGULAR)
	f.files++
	if err != nil || n%f.every != 0 {
		return err
	}
	_, err = apply(f.own(stripeCommit(inode, stripe, f.devices)))
	return err
}

func (f *filler) create(apply applyFunc, parent uint64, name string, typ wire.FileType) (uint64, error) {
	res, err := apply(f.own(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: parent, Name: name, Type: typ, Mode: 0o755, Exclusive: true}}}))
	f.made++
	return res.GetEntry().GetAttr().GetInode(), err
}

// stripeCommit gives a file one stripe of 4+2.
func stripeCommit(inode, id uint64, devices []uint32) *wire.MetaRequest {
	const length = 4 * moraine.DefaultChunkSize
	stripe := &wire.Stripe{Id: id, Scheme: &wire.Scheme{K: 4, M: 2}, Length: length}
	for i, d := range devices {
		stripe.Chunks = append(stripe.Chunks, &wire.ChunkState{Device: d, Crc: uint32(id)*2654435761 + uint32(i), Level: uint32(moraine.NVMe)})
	}
	return &wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: &wire.Commit{Inode: inode, Mode: wire.CommitMode_COMMIT_MODE_REPLACE, Level: uint32(moraine.NVMe),
		Stripes: []*wire.Stripe{stripe}, Extents: []*wire.Extent{{Length: length, Stripe: id}}}}}
}

// Load makes the state of a metadata server with e.Inodes inodes, in e.State, from
// which Scale and Followers start clusters.
func Load(ctx context.Context, e *Env) ([]Line, error) {
	if e.State == "" {
		return nil, errors.New("bench: no directory for the state: name one with --state")
	}
	to := &loaded{dir: e.State, ContentEvery: max(1, e.ContentEvery), Large: e.Large}
	if err := devcluster.MakeCertificates(to.certs(), loadMembers, 0); err != nil {
		return nil, err
	}
	ca, err := pki.LoadCA(to.certs())
	if err != nil {
		return nil, err
	}
	// Garbage is short-lived here, and there is enough memory.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(loadHeap))
	f := &filler{machine: state.New(0), cluster: ca.Cluster(), every: to.ContentEvery, large: to.Large}
	cfg := raftstore.Config{Dir: to.base(), Cluster: f.cluster, Node: "base", BallastBytes: -1,
		Peers: []raftstore.Peer{{ID: "base", Address: "nowhere"}}}
	u, err := e.measure(ctx, func(ctx context.Context) error {
		began := time.Now()
		reported := began
		return raftstore.Load(cfg, raftstore.Deps{}, func(l *raftstore.Loader) error {
			return f.fill(ctx, l, e.Inodes, func(made uint64) {
				if time.Since(reported) > reportEvery {
					reported = time.Now()
					e.Progress("%d inodes, %.0f/s", made, perSecond(float64(made), time.Since(began)))
				}
			})
		})
	})
	to.Inodes, to.Files = f.made, f.files
	if err == nil {
		err = to.save()
	}
	if err != nil {
		return nil, err
	}
	return []Line{{Name: e.name("load"), Value: perSecond(float64(f.made), u.wall), Unit: "inodes/s", CPU: u.cpu / (float64(f.made) / 1e6), DeviceBytes: u.wrote}}, nil
}

// reportEvery is the interval of progress reports of a load.
const reportEvery = 10 * time.Second

// loadHeap is the heap size at which a load collects garbage.
const loadHeap = 3 << 30
