package client

import (
	"context"
	"io"

	"github.com/morainefs/moraine"
)

// Stream reads a range of a file from its beginning to its end, as an io.ReadCloser and an
// io.WriterTo. WriteTo passes on what was fetched ahead without a copy. Its methods must not
// overlap.
type Stream struct {
	ctx context.Context // of NewStream: io.Reader has none
	r   *Reader
	off int64
	end int64
	// buf takes what was not fetched ahead. It is not from the client's pool: a stream keeps it
	// while it waits for others. With pool buffers, enough streams would hold all the memory that
	// their own reads wait for.
	buf []byte
}

// streamPiece is the most that a stream reads at once if nothing was fetched ahead.
const streamPiece = 1 << 20

// NewStream returns a stream of the file from off on. ctx bounds all its reads. Closing the
// stream closes the Reader.
func (r *Reader) NewStream(ctx context.Context, off int64) *Stream {
	return &Stream{ctx: ctx, r: r, off: off, end: r.Size()}
}

// NewRangeStream returns a stream of n bytes from off on, fewer if the file ends before. It
// fetches ahead from the first byte of the range on, and nothing past the range. ctx bounds all
// its reads. Closing the stream closes the Reader, from which nothing else may read.
func (r *Reader) NewRangeStream(ctx context.Context, off, n int64) *Stream {
	end := off + min(n, max(0, r.Size()-off))
	r.ahead.expect(off, end)
	return &Stream{ctx: ctx, r: r, off: off, end: end}
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	if s.r == nil {
		return 0, errStreamClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	if s.off >= s.end {
		return 0, io.EOF
	}
	n, err := s.r.ReadAt(s.ctx, p[:min(int64(len(p)), s.end-s.off)], s.off)
	s.off += int64(n)
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}

// WriteTo implements io.WriterTo.
func (s *Stream) WriteTo(w io.Writer) (int64, error) {
	if s.r == nil {
		return 0, errStreamClosed
	}
	began := s.off
	a := s.r.ahead
	for s.off < s.end {
		n, err := s.writeNext(a, w)
		s.off += int64(n)
		if err != nil {
			return s.off - began, err
		}
	}
	return s.off - began, nil
}

// writeNext writes the rest of the block at the stream's offset.
func (s *Stream) writeNext(a *readahead, w io.Writer) (int, error) {
	end := min(s.end, (s.off/a.block+1)*a.block)
	b := a.hold(s.off)
	if b == nil {
		end = min(end, s.off+streamPiece)
	}
	a.plan(s.ctx, s.off, end-s.off)
	if b != nil {
		defer a.done(b)
		if a.await(s.ctx, b) {
			s.r.c.metrics.ReadaheadHits.Inc()
			return w.Write(b.buf.Bytes()[s.off-b.off : end-b.off])
		}
	}
	n := min(end-s.off, streamPiece)
	if int64(len(s.buf)) < n {
		s.buf = make([]byte, n)
	}
	if err := s.r.ReadRange(s.ctx, s.buf[:n], s.off); err != nil {
		return 0, err
	}
	return w.Write(s.buf[:n])
}

// Close ends the stream and its Reader.
func (s *Stream) Close() error {
	if s.r == nil {
		return nil
	}
	r := s.r
	s.r = nil
	return r.Close()
}

var (
	_ io.ReadCloser = (*Stream)(nil)
	_ io.WriterTo   = (*Stream)(nil)
	_ io.Writer     = (*File)(nil)
	_ io.ReaderFrom = (*File)(nil)
)

// readerAt is io.ReaderAt over a Reader.
type readerAt struct {
	ctx context.Context
	r   *Reader
}

// ReaderAt returns an io.ReaderAt whose reads ctx bounds.
func (r *Reader) ReaderAt(ctx context.Context) io.ReaderAt { return readerAt{ctx, r} }

// ReadAt implements io.ReaderAt.
func (a readerAt) ReadAt(p []byte, off int64) (int, error) { return a.r.ReadAt(a.ctx, p, off) }

// Section returns a reader of n bytes from off on.
func (r *Reader) Section(ctx context.Context, off, n int64) (*io.SectionReader, error) {
	if off < 0 || n < 0 || off > r.Size()-n {
		return nil, &moraine.Error{Op: "client.Read", Ref: r.ref, Kind: moraine.InvalidArgument}
	}
	return io.NewSectionReader(r.ReaderAt(ctx), off, n), nil
}
