package nodecache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine/internal/vfs"
)

// cacheFile is an open cache file. Several processes may have it open, and several goroutines
// may use it.
type cacheFile struct {
	part Part
	file vfs.File

	mu   sync.Mutex
	sums []sum // those that this process knows; the file may have more

	marked atomic.Int64 // wall time in nanoseconds of the last use that is marked in the file
}

var (
	// errRemoved says that the keeper has removed the file. Its bytes are gone.
	errRemoved = errors.New("the cache file is removed")
	errDamaged = errors.New("the cache file is damaged")
)

// openCacheFile opens the cache file of a part. It fails with errMissing if there is none, and
// create is false.
func openCacheFile(fsys vfs.FS, path string, part Part, create bool) (*cacheFile, error) {
	flag := vfs.Write
	if create {
		flag |= vfs.Create
	}
	file, err := fsys.Open(path, flag)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, err
	}
	f := &cacheFile{part: part, file: file, sums: make([]sum, part.blocks())}
	if err := f.begin(create); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// begin checks the header, or writes that of a new file. Processes that make the same file at
// once write the same bytes.
func (f *cacheFile) begin(create bool) error {
	h := make([]byte, headerBytes)
	n, err := f.file.ReadAt(h, 0)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case n == 0 && create:
		_, err := f.file.WriteAt(f.part.header(), 0)
		return err
	case n == 0:
		return errMissing // it is being made, or being removed
	case !f.part.isHeaderOf(h):
		return fmt.Errorf("%w: its header is not that of its name", errDamaged)
	}
	return nil
}

func (f *cacheFile) close() { _ = f.file.Close() }

// read fills dst from off on, both within the part. It fails with errMissing if a block is
// missing.
func (f *cacheFile) read(dst []byte, off int64) error {
	lo, hi := int(off/blockSize), int((off+int64(len(dst))+blockSize-1)/blockSize)
	sums, err := f.sumsOf(lo, hi)
	if err != nil {
		return err
	}
	if begin := off % blockSize; begin != 0 { // dst begins within a block
		n, err := f.readWithin(dst, lo, begin, sums[0])
		if err != nil {
			return err
		}
		dst, lo, sums = dst[n:], lo+1, sums[1:]
	}
	whole := 0 // bytes of whole blocks
	i := lo
	for ; i < hi && int64(len(dst)-whole) >= f.part.blockLength(i); i++ {
		whole += int(f.part.blockLength(i))
	}
	if err := f.readWhole(dst[:whole], lo, sums[:i-lo]); err != nil {
		return err
	}
	if whole < len(dst) {
		_, err = f.readWithin(dst[whole:], i, 0, sums[i-lo])
	}
	return err
}

// readWhole fills dst with whole blocks, from block lo on, and verifies them.
func (f *cacheFile) readWhole(dst []byte, lo int, sums []sum) error {
	if len(dst) == 0 {
		return nil
	}
	if err := f.readAt(dst, f.part.dataAt()+int64(lo)*blockSize); err != nil {
		return err
	}
	for i, want := range sums {
		n := f.part.blockLength(lo + i)
		if sumOf(dst[:n]) != want {
			return f.mismatch(lo + i)
		}
		dst = dst[n:]
	}
	return nil
}

// mismatch returns why block i does not match its checksum. A file that was cut reads as zeros if a
// process has added to it since.
func (f *cacheFile) mismatch(i int) error {
	if removed, err := f.isRemoved(); removed || err != nil {
		return errors.Join(errRemoved, err)
	}
	return fmt.Errorf("%w: block %d does not match its checksum", errDamaged, i)
}

// readWithin copies what dst wants of block i, from offset begin of the block on.
func (f *cacheFile) readWithin(dst []byte, i int, begin int64, want sum) (int, error) {
	var block [blockSize]byte
	b := block[:f.part.blockLength(i)]
	if err := f.readWhole(b, i, []sum{want}); err != nil {
		return 0, err
	}
	return copy(dst, b[begin:]), nil
}

// readAt is ReadAt of a file that may have been removed meanwhile.
func (f *cacheFile) readAt(p []byte, off int64) error {
	_, err := f.file.ReadAt(p, off)
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrClosed) {
		return errRemoved // the keeper cuts what it removes; another reader may have closed it then
	}
	return err
}

// sumsOf returns the sums of the blocks [lo, hi), or errMissing if the file does not have all of
// them.
func (f *cacheFile) sumsOf(lo, hi int) ([]sum, error) {
	if sums, ok := f.known(lo, hi); ok {
		return sums, nil
	}
	// Another process may have added them.
	if err := f.load(lo, hi); err != nil {
		return nil, err
	}
	if sums, ok := f.known(lo, hi); ok {
		return sums, nil
	}
	return nil, errMissing
}

// known returns a copy of the sums of the blocks [lo, hi), and whether the process knows all.
func (f *cacheFile) known(lo, hi int) ([]sum, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sums := make([]sum, 0, hi-lo)
	for _, s := range f.sums[lo:hi] {
		if s == 0 {
			return nil, false
		}
		sums = append(sums, s)
	}
	return sums, true
}

// load reads the sums of the blocks [lo, hi) from the file. A sum that does not fit its block
// counts as none.
func (f *cacheFile) load(lo, hi int) error {
	raw := make([]byte, sumBytes*(hi-lo))
	n, err := f.file.ReadAt(raw, int64(headerBytes+sumBytes*lo))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := lo; i < hi && sumBytes*(i-lo+1) <= n; i++ {
		s := sum(binary.LittleEndian.Uint64(raw[sumBytes*(i-lo):]))
		if int64(s>>32) == f.part.blockLength(i) {
			f.sums[i] = s
		}
	}
	return nil
}

// add stores the blocks that lie in the range of p, which begins at offset off of the part. It
// returns how many bytes it has written. Blocks that are there are not written again.
func (f *cacheFile) add(p []byte, off int64) (written int64, err error) {
	if removed, err := f.isRemoved(); err != nil {
		return 0, err
	} else if removed {
		return 0, errRemoved
	}
	lo := int((off + blockSize - 1) / blockSize)
	end := off + int64(len(p))
	hi := int(end / blockSize)
	if end == f.part.length() {
		hi = f.part.blocks()
	}
	if lo >= hi {
		return 0, nil
	}
	if err := f.load(lo, hi); err != nil {
		return 0, err
	}
	for lo < hi {
		n := f.missing(lo, hi)
		if n > 0 {
			begin, end := int64(lo)*blockSize, min(int64(lo+n)*blockSize, f.part.length())
			if err := f.write(p[begin-off:end-off], lo, n); err != nil {
				return written, err
			}
			written += end - begin
		}
		lo += n + 1
	}
	return written, nil
}

// missing returns how many blocks from lo on, and before hi, the file does not have.
func (f *cacheFile) missing(lo, hi int) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for lo+n < hi && f.sums[lo+n] == 0 {
		n++
	}
	return n
}

// write stores n blocks, from lo on: first their bytes, then their sums. So a reader that sees a
// sum sees the bytes.
func (f *cacheFile) write(p []byte, lo, n int) error {
	if err := f.writeAt(p, f.part.dataAt()+int64(lo)*blockSize); err != nil {
		return err
	}
	sums := make([]sum, 0, n)
	raw := make([]byte, 0, n*sumBytes)
	for i := range n {
		b := p[:f.part.blockLength(lo+i)]
		p = p[len(b):]
		sums = append(sums, sumOf(b))
		raw = binary.LittleEndian.AppendUint64(raw, uint64(sums[i]))
	}
	if err := f.writeAt(raw, int64(headerBytes+sumBytes*lo)); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(f.sums[lo:], sums)
	return nil
}

// writeAt is WriteAt of a file that another call may have closed, since it found it removed.
func (f *cacheFile) writeAt(p []byte, off int64) error {
	_, err := f.file.WriteAt(p, off)
	if errors.Is(err, fs.ErrClosed) {
		return errRemoved
	}
	return err
}

// isRemoved reports whether the keeper has removed the file: it cuts what it removes.
func (f *cacheFile) isRemoved() (bool, error) {
	var h [len(magic)]byte
	_, err := f.file.ReadAt(h[:], 0)
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrClosed) {
		return true, nil
	}
	return string(h[:]) != magic, err
}

// useInterval is the least time between two marks of one file as used.
const useInterval = 10 * time.Second

// use marks the file as read, so that the keeper keeps it for longer.
func (f *cacheFile) use(now time.Time) {
	last := f.marked.Load()
	if now.UnixNano()-last < int64(useInterval) || !f.marked.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	_, _ = f.file.WriteAt([]byte{1}, usedAt) // without the mark the file goes a little earlier
}
