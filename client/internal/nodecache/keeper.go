package nodecache

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/vfs"
)

// keeper counts the directory and evicts. The process that has the lock is the keeper for all;
// the others learn from the count file how much they may add.
type keeper struct {
	c     *Cache
	fifo  *fifo
	lock  io.Closer // nil while another process is the keeper
	count count
	// took is how long the last turn took.
	took time.Duration
}

const (
	// turnInterval is the time between two turns of the keeper, if no process adds much.
	turnInterval = 5 * time.Second
	// restFactor is how much longer than a turn the keeper rests, so that it uses a twentieth
	// of a core at most.
	restFactor = 20
	// maxFiles bounds the cache files, and so the keeper's memory: 200 bytes for each.
	maxFiles = 1 << 20
	// minFreeShare is the part of the disk that the cache leaves free: a twentieth.
	minFreeShare = 20
)

func newKeeper(c *Cache) *keeper { return &keeper{c: c, fifo: newFIFO()} }

// run takes turns until life ends.
func (k *keeper) run(life context.Context) {
	defer func() {
		if k.lock != nil {
			_ = k.lock.Close()
		}
	}()
	for {
		began := k.c.clock.Now()
		k.turn(life)
		k.took = k.c.clock.Since(began)
		if !k.rest(life, k.took*restFactor, nil) || !k.rest(life, turnInterval, k.c.budget.spent) {
			return
		}
	}
}

// rest waits for a time, or until wake gets a value. It returns false once life ends.
func (k *keeper) rest(life context.Context, d time.Duration, wake <-chan struct{}) bool {
	select {
	case <-life.Done():
		return false
	case <-k.c.clock.After(d):
	case <-wake:
	}
	return true
}

// turn counts and evicts, or learns from the keeper.
func (k *keeper) turn(life context.Context) {
	if k.lock == nil {
		lock, err := k.c.fs.Lock(path.Join(k.c.cfg.Dir, lockName))
		if errors.Is(err, vfs.ErrLocked) {
			k.follow()
			return
		}
		if err != nil {
			k.problem("lock", err)
			return
		}
		k.lock = lock
		k.count, _ = readCount(k.c.fs, path.Join(k.c.cfg.Dir, countName)) // turns go on from the last keeper's
	}
	if err := k.scan(life); err != nil {
		k.problem("scan", err)
		return
	}
	k.makeRoom(life)
	used := k.fifo.bytes()
	k.c.metrics.NodeCacheBytes.Set(float64(used))
	k.count = count{turn: k.count.turn + 1, bytes: used}
	if err := k.count.write(k.c.fs, path.Join(k.c.cfg.Dir, countName)); err != nil {
		k.problem("write", err)
	}
	k.c.budget.set(k.c.cfg.Bytes - used)
}

func (k *keeper) problem(op string, err error) {
	k.c.metrics.NodeCacheErrors.WithLabelValues(op).Inc()
	k.c.log.Warn("the node's cache could not be counted", "dir", k.c.cfg.Dir, "op", op, "err", err)
}

// follow learns from the count file of another process what this process may add.
func (k *keeper) follow() {
	n, err := readCount(k.c.fs, path.Join(k.c.cfg.Dir, countName))
	if err != nil || n.turn == k.count.turn {
		return // the keeper has not had a turn
	}
	k.count = n
	k.c.metrics.NodeCacheBytes.Set(float64(n.bytes))
	k.c.budget.set(k.c.cfg.Bytes - n.bytes)
}

// scan brings the queues up to date with the directory.
func (k *keeper) scan(life context.Context) error {
	found := make(map[ID]struct{}, len(k.fifo.files))
	for shard := range 256 {
		if life.Err() != nil {
			return nil
		}
		dir := path.Join(k.c.cfg.Dir, hex.EncodeToString([]byte{byte(shard)}))
		names, err := k.c.fs.List(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if id, ok := idOf(name); ok && k.see(id) {
				found[id] = struct{}{}
			}
		}
	}
	for id := range k.fifo.files {
		if _, ok := found[id]; !ok {
			k.fifo.remove(id)
		}
	}
	return nil
}

// idOf returns the ID whose file has a name.
func idOf(name string) (id ID, ok bool) {
	b, err := hex.DecodeString(name)
	if err != nil || len(b) != len(id) {
		return id, false
	}
	return ID(b), true
}

// see notes the size of a file, and its queue if it is new. It returns false if the file is gone.
func (k *keeper) see(id ID) bool {
	name := k.c.path(id)
	info, err := k.c.fs.Stat(name)
	if err != nil {
		return false
	}
	_, known := k.fifo.files[id]
	k.fifo.put(id, info.Bytes, !known && readMark(k.c.fs, name, queueAt))
	return true
}

// makeRoom evicts until there is room for what all processes may add.
func (k *keeper) makeRoom(life context.Context) {
	most := k.c.cfg.Bytes * 7 / 8
	if u, err := k.c.fs.Usage(k.c.cfg.Dir); err == nil {
		if missing := int64(u.Total/minFreeShare) - int64(u.Free); missing > 0 {
			most = min(most, k.fifo.bytes()-missing)
		}
	}
	for life.Err() == nil && (k.fifo.bytes() > most || len(k.fifo.files) > maxFiles) {
		id, ok := k.fifo.evict(k)
		if !ok {
			return
		}
		if err := k.c.remove(id); err != nil {
			k.problem("remove", err)
			return
		}
		k.c.metrics.NodeCacheEvictions.Inc()
	}
}

// used implements marks.
func (k *keeper) used(id ID) bool {
	name := k.c.path(id)
	return readMark(k.c.fs, name, usedAt) && writeMark(k.c.fs, name, usedAt, 0) == nil
}

// promoted implements marks. Without the mark the file begins in the small queue after a restart.
func (k *keeper) promoted(id ID) { _ = writeMark(k.c.fs, k.c.path(id), queueAt, 1) }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readMark(fsys vfs.FS, name string, at int64) bool {
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return false
	}
	defer f.Close()
	var mark [1]byte
	_, err = f.ReadAt(mark[:], at)
	return err == nil && mark[0] == 1
}

func writeMark(fsys vfs.FS, name string, at int64, mark byte) error {
	f, err := fsys.Open(name, vfs.Write)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte{mark}, at)
	return err
}

// count is what the keeper reports to the other processes after each turn.
type count struct {
	turn  uint64
	bytes int64
}

// countName is the file with the count, and countBytes its length.
const (
	countName  = "count"
	countBytes = 20
)

func (n count) write(fsys vfs.FS, name string) error {
	b := binary.LittleEndian.AppendUint64(nil, n.turn)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.bytes))
	b = binary.LittleEndian.AppendUint32(b, crc.Sum(b))
	f, err := fsys.Open(name, vfs.Create)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, 0)
	return err
}

// readCount fails while the file is being written.
func readCount(fsys vfs.FS, name string) (count, error) {
	f, err := fsys.Open(name, vfs.Read)
	if err != nil {
		return count{}, err
	}
	defer f.Close()
	b := make([]byte, countBytes)
	if _, err := f.ReadAt(b, 0); err != nil {
		return count{}, err
	}
	if crc.Sum(b[:16]) != binary.LittleEndian.Uint32(b[16:]) {
		return count{}, errDamaged
	}
	return count{turn: binary.LittleEndian.Uint64(b), bytes: int64(binary.LittleEndian.Uint64(b[8:]))}, nil
}
