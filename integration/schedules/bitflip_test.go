package schedules_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
)

// flipsAtOnce is how many records of a device one fault damages.
const flipsAtOnce = 3

// rot damages a device, and restarts its server meanwhile, three times of four.
// Otherwise the server has everything in memory, and nothing reads the disk.
func (in *injector) rot(f fault) (act, error) {
	if err := in.flip(f); err != nil {
		return act{}, err
	}
	n := in.cluster.Node(f.Target)
	if f.At%4 == 0 {
		return act{seen: yes}, nil
	}
	return act{yes, n.Start}, n.Kill()
}

// flip flips a bit in some records on the device of a host, directly: in synced
// chunks, mostly in their bytes, and sometimes in their heads. It has fired when
// another read of the device shows the damage.
func (in *injector) flip(f fault) error {
	dir := filepath.Join(in.cluster.Node(f.Target).Dir, "device0")
	records, err := syncedRecords(dir)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return errors.New("the device has no record yet")
	}
	rng := rand.New(rand.NewPCG(in.seed, uint64(f.At)))
	hit := map[string]bool{}
	for range flipsAtOnce {
		r := records[rng.IntN(len(records))]
		at := r.Offset + rng.Int64N(160) // covered by the head's checksum
		if rng.IntN(5) > 0 {
			data := r.Size - (int64(r.Header.Length)+blockBytes-1)/blockBytes*blockBytes
			at = r.Offset + data + rng.Int64N(int64(r.Header.Length))
		}
		if err := flipBit(segmentOf(dir, r), at, byte(1)<<rng.IntN(8)); err != nil {
			return err
		}
		hit[fmt.Sprint(r.Segment, r.Offset)] = true
	}
	return damaged(dir, hit)
}

func segmentOf(dir string, r disk.RecordInfo) string {
	return filepath.Join(dir, "segments", fmt.Sprintf("%016x.seg", r.Segment))
}

// syncedRecords are the chunks of a device that were synced.
func syncedRecords(dir string) (records []disk.RecordInfo, err error) {
	synced := uint64(0)
	err = disk.Inspect(vfs.OS{}, dir, false, func(r disk.RecordInfo) error {
		synced = max(synced, r.Durable)
		if r.Tombstone == nil && r.Damage == nil && r.Header.Length > 0 {
			records = append(records, r)
		}
		return nil
	})
	var old []disk.RecordInfo
	for _, r := range records {
		if r.Sequence < synced {
			old = append(old, r)
		}
	}
	return old, err
}

func flipBit(name string, at int64, bit byte) error {
	f, err := vfs.OS{}.Open(name, vfs.Write)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err = f.ReadAt(b, at); err == nil {
		b[0] ^= bit
		if _, err = f.WriteAt(b, at); err == nil {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

// damaged fails if all of the records are intact: they were freed meanwhile, or
// flipped twice.
func damaged(dir string, hit map[string]bool) error {
	well := 0
	err := disk.Inspect(vfs.OS{}, dir, true, func(r disk.RecordInfo) error {
		if hit[fmt.Sprint(r.Segment, r.Offset)] && r.Damage == nil {
			well++
		}
		return nil
	})
	if err == nil && well == len(hit) {
		err = errors.New("no record is damaged")
	}
	return err
}
