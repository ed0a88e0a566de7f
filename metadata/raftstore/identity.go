package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
)

// Contents of a node's directory. docs/formats/metastore.md describes it.
const (
	identityFile = "IDENTITY"
	lockFile     = "LOCK"
	ballastFile  = "BALLAST"
	probeFile    = "PROBE"
	logDir       = "log"
	stateDir     = "state"
	snapshotDir  = "snapshots"

	identityMagic   = "MRNNODE1"
	identityVersion = 1
	maxNodeName     = 255
)

// identity says which cluster and node a directory belongs to.
type identity struct {
	cluster moraine.UUID
	node    string
	// formed is false from the first write of the file until the node has a log, so that an
	// interrupted Bootstrap or Join is recognized.
	formed bool
	// dataID is a random name of this directory. By it the group distinguishes a node that lost its
	// disk from the former one.
	dataID moraine.UUID
	// admitted: the node may take part in its group. A new directory may not until the group knows
	// it. entered: it takes part, and may have sent messages to others. At the first start,
	// admitted nodes wait for each other.
	admitted, entered bool
	// incarnation is the one that a restore or a forced quorum began; its number is 0 if only the
	// state has it. outlivedBy is the number of an incarnation without this directory, once the
	// node has received one.
	incarnation moraine.MarkedIncarnation
	outlivedBy  moraine.Incarnation
}

func (id identity) encode() []byte {
	body := append([]byte(nil), id.cluster[:]...)
	body = append(body, flag(id.formed))
	body = binary.LittleEndian.AppendUint16(body, uint16(len(id.node)))
	body = append(body, id.node...)
	body = append(body, id.dataID[:]...)
	body = append(body, flag(id.admitted), flag(id.entered), byte(id.incarnation.Number))
	body = append(body, id.incarnation.Mark[:]...)
	body = append(body, byte(id.outlivedBy))
	return seal(identityMagic, identityVersion, body)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func decodeIdentity(p []byte) (identity, error) {
	body, err := unseal(identityMagic, identityVersion, p)
	if err != nil {
		return identity{}, err
	}
	r := reader{p: body}
	var id identity
	copy(id.cluster[:], r.take(len(id.cluster)))
	id.formed = r.flag()
	id.node = string(r.take(int(r.u16())))
	copy(id.dataID[:], r.take(len(id.dataID)))
	id.admitted, id.entered = r.flag(), r.flag()
	id.incarnation.Number = moraine.Incarnation(r.byte())
	copy(id.incarnation.Mark[:], r.take(len(id.incarnation.Mark)))
	id.outlivedBy = moraine.Incarnation(r.byte())
	if !r.done() || id.node == "" {
		return identity{}, corruptf("node identity does not parse")
	}
	return id, nil
}

func (r *reader) byte() byte {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

// flag reads a byte that must be 0 or 1.
func (r *reader) flag() bool {
	p := r.take(1)
	if p == nil {
		return false
	}
	r.bad = r.bad || p[0] > 1
	return p[0] == 1
}

// readIdentity returns the identity of dir; fs.ErrNotExist if it has none.
func readIdentity(fsys vfs.FS, dir string) (identity, error) {
	p, err := readFile(fsys, filepath.Join(dir, identityFile))
	if err != nil {
		return identity{}, err
	}
	return decodeIdentity(p)
}

// checkIdentity compares dir's identity with cfg.
func checkIdentity(id identity, cfg *Config) error {
	fail := func(kind moraine.Kind, err error) error {
		return &moraine.Error{Op: "raftstore.Open", Ref: cfg.Dir, Kind: kind, Err: err}
	}
	switch {
	case id.cluster != cfg.Cluster:
		return fail(moraine.WrongCluster, fmt.Errorf("the directory belongs to cluster %s, not to %s", id.cluster, cfg.Cluster))
	case id.node != cfg.Node:
		return fail(moraine.WrongCluster, fmt.Errorf("the directory belongs to node %s, not to %s", id.node, cfg.Node))
	}
	return nil
}

// Bootstrap forms a new group. It writes cfg.Dir's identity and the group's first configuration,
// cfg.Peers, to its log. Each node of the group is bootstrapped with the same Peers, in any order.
// A directory already bootstrapped for this cluster and node stays unchanged. A directory of
// another one fails with WrongCluster, and one with any other content with NotEmpty; both stay
// unchanged. An interrupted Bootstrap may be repeated. It does not use deps.FSM and deps.Stream.
func Bootstrap(cfg Config, deps Deps) error {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: "raftstore.Bootstrap", Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	if err := form(&cfg, &deps, identity{}, writeFirstEntry); err != nil {
		return wrap("raftstore.Bootstrap", cfg.Dir, err)
	}
	return nil
}

// Join prepares a node for an existing group. It writes cfg.Dir's identity and an empty log, which
// the group's leader fills once the node was added. cfg.Peers are some nodes of the group, and this
// one. Otherwise it is like Bootstrap.
func Join(cfg Config, deps Deps) error {
	cfg.setDefaults()
	deps.setDefaults()
	if err := cfg.validate(); err != nil {
		return &moraine.Error{Op: "raftstore.Join", Ref: cfg.Dir, Kind: moraine.InvalidArgument, Err: err}
	}
	if err := form(&cfg, &deps, identity{}, nil); err != nil {
		return wrap("raftstore.Join", cfg.Dir, err)
	}
	return nil
}

// Formed reports whether Bootstrap or Join has completed in dir. Errors are *moraine.Error.
func Formed(fsys vfs.FS, dir string) (bool, error) {
	id, err := readIdentity(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, wrap("raftstore.Formed", dir, err)
	}
	return id.formed, nil
}

// form makes cfg.Dir the directory of a node. fill writes its initial content; nil for none. as
// says whether the node must ask before it takes part, and its incarnation.
func form(cfg *Config, deps *Deps, as identity, fill func(cfg *Config, deps *Deps) error) (err error) {
	fsys := deps.FS
	if err := refuseForeign(fsys, cfg.Dir); err != nil {
		return err
	}
	if err := fsys.MkdirAll(cfg.Dir); err != nil {
		return err
	}
	lock, err := fsys.Lock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return lockError(cfg.Dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()

	id, err := readIdentity(fsys, cfg.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := refuseOrphans(fsys, cfg.Dir); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := checkIdentity(id, cfg); err != nil || id.formed {
			return err
		}
	}
	id = identity{cluster: cfg.Cluster, node: cfg.Node}
	if _, err := io.ReadFull(deps.Rand, id.dataID[:]); err != nil {
		return err
	}
	if err := replaceFile(fsys, cfg.Dir, identityFile, id.encode()); err != nil {
		return err
	}
	if err := fsys.SyncDir(filepath.Dir(cfg.Dir)); err != nil {
		return err
	}
	// Until the second write of the identity nothing valuable is in the directory: the node has
	// never acknowledged an entry.
	for _, sub := range []string{logDir, stateDir, snapshotDir} {
		if err := fsys.RemoveAll(filepath.Join(cfg.Dir, sub)); err != nil {
			return err
		}
		if err := fsys.MkdirAll(filepath.Join(cfg.Dir, sub)); err != nil {
			return err
		}
	}
	if err := fsys.SyncDir(cfg.Dir); err != nil {
		return err
	}
	if fill != nil {
		if err := fill(cfg, deps); err != nil {
			return err
		}
	}
	id.formed, id.admitted, id.entered, id.incarnation = true, as.admitted, as.entered, as.incarnation
	// COMMIT POINT of the node: until it, Run refuses the directory and Bootstrap starts again.
	return replaceFile(fsys, cfg.Dir, identityFile, id.encode())
}

// lockError explains a lock that another process has.
func lockError(dir string, err error) error {
	if errors.Is(err, vfs.ErrLocked) {
		return &moraine.Error{Op: "raftstore.lock", Ref: dir, Kind: moraine.Busy, Err: vfs.ErrLocked}
	}
	return err
}

// refuseForeign fails if dir has files that no node's directory has: it was named by mistake, or
// belongs to something else.
func refuseForeign(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if slices.Contains(names, identityFile) {
		return nil // the identity in it says whose it is
	}
	for _, name := range names {
		switch name {
		case identityFile + ".new", lockFile, ballastFile, probeFile, logDir, stateDir, snapshotDir, "lost+found":
		default:
			return &moraine.Error{Op: "raftstore.Bootstrap", Ref: dir, Kind: moraine.NotEmpty,
				Err: fmt.Errorf("the directory belongs to no metadata server, but contains %s: name an empty directory", name)}
		}
	}
	return err
}

// refuseOrphans fails if dir has a node's data but no identity. Somebody deleted the identity, and
// forming a group over the data would destroy it.
func refuseOrphans(fsys vfs.FS, dir string) error {
	for _, sub := range []string{logDir, stateDir, snapshotDir} {
		there, err := exists(fsys, filepath.Join(dir, sub))
		if err != nil {
			return err
		}
		if there {
			return corruptf("%s has data but no %s file", dir, identityFile)
		}
	}
	return nil
}

func writeFirstEntry(cfg *Config, deps *Deps) (err error) {
	log, err := openLog(cfg, deps, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	conf := raft.Configuration{}
	for _, p := range cfg.Peers {
		conf.Servers = append(conf.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address),
		})
	}
	return raft.BootstrapCluster(raftConfig(cfg, deps), log, log, raft.NewDiscardSnapshotStore(), nil, conf)
}

// wrap makes err a *moraine.Error and keeps its kind.
func wrap(op, ref string, err error) error {
	if err == nil {
		return nil
	}
	kind := moraine.KindOf(err)
	var pe *fs.PathError
	if kind == moraine.Internal && errors.As(err, &pe) {
		kind = moraine.IOError
	}
	return &moraine.Error{Op: op, Ref: ref, Kind: kind, Err: err}
}
