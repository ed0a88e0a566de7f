// Package tiers is the contract of what keeps chunks. Each subpackage is one
// kind of medium (disk is a segment log on one device); tiertest holds every
// implementation to the contract.
package tiers

import (
	"context"

	"github.com/morainefs/moraine"
)

// Header describes one stored chunk. It is kept beside the bytes, under a
// checksum of its own, and held against the stripe record by whoever reads.
type Header struct {
	ID      moraine.ChunkID
	Version moraine.LayoutVersion
	Tenant  moraine.Tenant
	// Cluster and Incarnation are those the chunk was put under.
	Cluster     moraine.UUID
	Incarnation moraine.Incarnation
	// Length is the number of stored bytes.
	Length int64
	// CRC is the CRC32C of all of them.
	CRC uint32
	// Cipher and KeyID are 0 until chunks are encrypted.
	Cipher uint8
	KeyID  uint32
}

// Tier keeps immutable chunks on one device. All methods may be called
// concurrently. Errors are *moraine.Error: NotFound, NoSpace, Corrupt (the
// bytes do not match their sums), Exists (another chunk of that id and version,
// with other bytes, is there), IOError (the device failed; it must be taken out
// of service), Unavailable (closed).
type Tier interface {
	// Put stores data under h. When it returns nil the chunk is durable and
	// visible; on error nothing is visible. Putting the same header again
	// succeeds; a greater Version of the same ID replaces a smaller one, and a
	// smaller one is refused with Stale. blockCRCs holds the CRC32C of each
	// BlockSize of data (the last may be short). data starts at an address that
	// is a multiple of BlockSize and has capacity up to the next multiple of
	// BlockSize past its length; Put may overwrite the bytes between, and
	// does not keep data after it returns.
	Put(ctx context.Context, h Header, data []byte, blockCRCs []uint32) error
	// Get returns the header of a chunk, and reads [off, off+len(dst)) of it
	// into dst after verifying every block touched. len(dst) may be 0.
	Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (Header, error)
	// Delete removes the chunk if its Version is below the one given; a missing
	// chunk, or one of that version or above, is no error. Space is given back
	// in the background.
	Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error
	// List returns the headers of up to limit chunks with from <= ID, in order
	// of (stripe, index).
	List(ctx context.Context, from moraine.ChunkID, limit int) ([]Header, error)
	// Usage reports the device's space.
	Usage() Usage
	// Err returns nil while the device is in service, and the error that took
	// it out of service afterwards.
	Err() error
	// Close ends all work; chunks acknowledged stay durable.
	Close() error
}

// Usage is the space of a device.
type Usage struct {
	CapacityBytes uint64
	// UsedBytes counts the space of live and not yet reclaimed chunks.
	UsedBytes uint64
	Chunks    uint64
}

// FreeBytes returns how much more the device could hold.
func (u Usage) FreeBytes() uint64 { return u.CapacityBytes - min(u.UsedBytes, u.CapacityBytes) }

// Full reports whether less than a fiftieth (2%) of the device is free: it then
// takes only repair.
func (u Usage) Full() bool { return u.FreeBytes() < u.CapacityBytes/50 }

// View is a verified range of a chunk, lent by a tier.
type View struct {
	Header Header
	// Data is the range. It must not be changed, nor used after Release.
	Data []byte
	// CRC is the CRC32C of Data, from the stored sums where it covers whole blocks.
	CRC uint32
	// BlockCRCs are the sums of all blocks of the chunk; nil where the tier does
	// not say. They must not be changed.
	BlockCRCs []uint32
	release   func()
}

// NewView makes a View; release, which may be nil, is called by Release.
func NewView(h Header, data []byte, crc uint32, release func()) *View {
	return &View{Header: h, Data: data, CRC: crc, release: release}
}

// Release gives the bytes back. It must be called once.
func (v *View) Release() {
	v.Data = nil
	if v.release != nil {
		v.release()
	}
}

// Viewer is the optional speed of a Tier that can lend the bytes it has read,
// so that nobody copies them.
type Viewer interface {
	// View returns [off, off+n) of a chunk, verified. It may wait for a buffer
	// until ctx ends. Errors are those of Tier.Get.
	View(ctx context.Context, id moraine.ChunkID, off, n int64) (*View, error)
}

// Deletion asks for what was put under a version below Below.
type Deletion struct {
	ID    moraine.ChunkID
	Below moraine.LayoutVersion
}

// Deleter is the optional speed of a Tier that can delete many chunks at the
// price of one.
type Deleter interface {
	// DeleteAll is Tier.Delete of each. On error some may have been carried out.
	DeleteAll(ctx context.Context, deletions []Deletion) error
}
