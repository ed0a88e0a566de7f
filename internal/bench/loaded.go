package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/pki"
)

// The contents of the directory of a state that Load made.
const (
	loadBase  = "base"        // the loaded node; it never runs
	loadCerts = "certs"       // the certificates of its cluster
	loadNote  = "loaded.json" // its description; written last
)

// loadMembers is how many metadata servers a cluster on a loaded state has.
const loadMembers = 3

// loaded is a state that Load made.
type loaded struct {
	dir  string
	lock io.Closer // while a cluster runs on it
	// Inodes counts all, Files those that fillPath names.
	Inodes       uint64 `json:"inodes"`
	Files        uint64 `json:"files"`
	ContentEvery uint64 `json:"content_every"`
	// Large is how many files largeDirectory has; 0: there is none.
	Large uint64 `json:"large"`
}

func (l *loaded) certs() string { return filepath.Join(l.dir, loadCerts) }
func (l *loaded) base() string  { return filepath.Join(l.dir, loadBase) }

// bytes returns how much of the disk the state uses.
func (l *loaded) bytes() (float64, error) { return treeBytes(filepath.Join(l.base(), "state")) }

// findLoaded finds the state in dir; fs.ErrNotExist if there is none, or only an
// unfinished one.
func findLoaded(dir string) (*loaded, error) {
	p, err := os.ReadFile(filepath.Join(dir, loadNote))
	if err != nil {
		return nil, err
	}
	l := &loaded{dir: dir}
	return l, json.Unmarshal(p, l)
}

func (l *loaded) save() error {
	p, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, loadNote), append(p, '\n'), 0o644)
}

// loadedState returns the state of e.State, or makes one of e.Inodes inodes, which
// end removes again.
func loadedState(ctx context.Context, e *Env) (l *loaded, end func() error, err error) {
	keep := func() error { return nil }
	if e.State != "" {
		l, err := findLoaded(e.State)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("bench: %s holds no state: make one with `moraine bench load --state`", e.State)
		}
		return l, keep, err
	}
	own := *e
	own.State = filepath.Join(e.Dir, "state")
	_, err = Load(ctx, &own)
	if err != nil {
		return nil, keep, err
	}
	l, err = findLoaded(own.State)
	return l, func() error { return os.RemoveAll(own.State) }, err
}

// start starts a cluster of metadata servers on the state. It does so in the
// state's directory, since files are hard links. It returns the Env for it.
func (l *loaded) start(ctx context.Context, e *Env) (on *Env, err error) {
	ca, err := pki.LoadCA(l.certs())
	if err != nil {
		return nil, err
	}
	if l.lock, err = (vfs.OS{}).Lock(filepath.Join(l.dir, "lock")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.lock.Close())
		}
	}()
	dir := filepath.Join(l.dir, "cluster")
	if err := os.RemoveAll(dir); err != nil { // left by a killed run
		return nil, err
	}
	c, err := devcluster.Start(ctx, devcluster.Config{
		Dir: dir, CertsDir: l.certs(), Metadata: loadMembers, Chunkservers: -1, Mode: e.Mode, LogStall: ShippedLogStall,
		// The hosts of the load's devices do not exist, and their stripes must not
		// be repaired.
		MetadataArgs: append([]string{"--repair-grace", "240h"}, e.MetadataArgs...),
		Seed: func(name, data string, peers []string) error {
			cfg := raftstore.Config{Dir: data, Cluster: ca.Cluster(), Node: name}
			for _, p := range peers {
				id, address, _ := strings.Cut(p, "=")
				cfg.Peers = append(cfg.Peers, raftstore.Peer{ID: id, Address: address})
			}
			return raftstore.Seed(cfg, raftstore.Deps{}, l.base())
		},
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return e.On(c), nil
}

// stop ends the cluster and removes it.
func (l *loaded) stop(on *Env) error {
	err := on.Cluster.Close()
	return errors.Join(err, os.RemoveAll(on.Cluster.Dir()), l.lock.Close())
}
