// Package tiers is the contract of a store of chunks. Each subpackage is one kind
// of medium: disk is a segment log on one device, mem is memory over a device.
// Package tiertest tests every implementation against the contract.
//
// One path through it: a chunkserver calls Tier.Put with a Header and the
// chunk's bytes. Later it calls Tier.Get, or Viewer.View where the tier can
// lend its bytes. Deletion removes a chunk below a version.
package tiers

import (
	"context"

	"github.com/morainefs/moraine"
)

// Header describes one stored chunk. It is stored beside the bytes, under a
// checksum of its own. Readers verify it against the stripe record.
type Header struct {
	ID      moraine.ChunkID
	Version moraine.LayoutVersion
	Tenant  moraine.Tenant
	// Cluster and Incarnation are those under which the chunk was put.
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
// concurrently. Errors are *moraine.Error: NotFound, NoSpace, Corrupt (checksum
// mismatch), and Unavailable (closed). Exists means that the tier has other
// bytes of that id and version. IOError means that the device failed and must
// be taken out of service.
type Tier interface {
	// Put stores data under h. When it returns nil the chunk is durable and
	// visible; on error nothing is visible. Putting the same header again succeeds.
	// A greater Version of the same ID replaces a smaller one; a smaller one is
	// refused with Stale. blockCRCs holds the CRC32C of each BlockSize of data (the
	// last block may be short). data starts at an address that is a multiple of
	// BlockSize, and has capacity up to the next multiple of BlockSize past its
	// length. Put may overwrite the bytes between, and does not keep data after it
	// returns.
	Put(ctx context.Context, h Header, data []byte, blockCRCs []uint32) error
	// Get returns the header of a chunk. It reads [off, off+len(dst)) of the chunk
	// into dst after it verified every block that the range touches. len(dst) may
	// be 0.
	Get(ctx context.Context, id moraine.ChunkID, off int64, dst []byte) (Header, error)
	// Delete removes the chunk if its Version is below the one given. A missing
	// chunk, or one of that version or above, is no error. The tier reclaims the
	// space in the background.
	Delete(ctx context.Context, id moraine.ChunkID, below moraine.LayoutVersion) error
	// List returns the headers of up to limit chunks with from <= ID, in order
	// of (stripe, index).
	List(ctx context.Context, from moraine.ChunkID, limit int) ([]Header, error)
	// Usage reports the device's space.
	Usage() Usage
	// Err returns nil while the device is in service. Afterwards it returns the
	// error that took the device out of service.
	Err() error
	// Close ends all work. Acknowledged chunks stay durable.
	Close() error
}

// Usage is the space of a device.
type Usage struct {
	CapacityBytes uint64
	// UsedBytes counts the space of live and not yet reclaimed chunks.
	UsedBytes uint64
	Chunks    uint64
}

// FreeBytes returns how many more bytes the device can hold.
func (u Usage) FreeBytes() uint64 { return u.CapacityBytes - min(u.UsedBytes, u.CapacityBytes) }

// Full reports whether less than a fiftieth (2%) of the device is free. A full
// device accepts only repair.
func (u Usage) Full() bool { return u.FreeBytes() < u.CapacityBytes/50 }

// View is a verified range of a chunk, lent by a tier.
type View struct {
	Header Header
	// Data is the range. It must not be changed, nor used after Release.
	Data []byte
	// CRC is the CRC32C of Data. Whole blocks contribute their stored checksums.
	CRC uint32
	// BlockCRCs are the checksums of all blocks of the chunk; nil if the tier does
	// not provide them. They must not be changed.
	BlockCRCs []uint32
	// Memory is how many bytes of memory the view keeps until Release; 0: those of Data.
	Memory  int64
	release func()
}

// NewView makes a View; release, which may be nil, is called by Release.
func NewView(h Header, data []byte, crc uint32, release func()) *View {
	return &View{Header: h, Data: data, CRC: crc, release: release}
}

// Release returns the bytes to the tier. It must be called once.
func (v *View) Release() {
	v.Data = nil
	if v.release != nil {
		v.release()
	}
}

// Viewer is an optional interface of a Tier that can lend the bytes it has read, so
// that they need no copy.
type Viewer interface {
	// View returns [off, off+n) of a chunk, verified. It may wait for a buffer
	// until ctx ends. Errors are those of Tier.Get.
	View(ctx context.Context, id moraine.ChunkID, off, n int64) (*View, error)
}

// Deletion deletes the versions of a chunk below Below.
type Deletion struct {
	ID    moraine.ChunkID
	Below moraine.LayoutVersion
}

// Deleter is an optional interface of a Tier that deletes many chunks at the cost
// of one.
type Deleter interface {
	// DeleteAll is Tier.Delete of each. After an error some may be deleted.
	DeleteAll(ctx context.Context, deletions []Deletion) error
}
