package ckpt

import "github.com/morainefs/moraine/internal/crc"

// plan says which bytes of one saved slice go where in a reader's buffer: runs of equal length,
// at the strides of the outer dimensions.
type plan struct {
	file, dst int64 // of the first run: offset in the file and in the buffer
	run       int64 // bytes of each
	// counts, and strides in bytes, of the dimensions above a run, outermost first.
	counts                []int64
	fileStride, dstStride []int64
	// whole is true if the single run is all of the saved slice.
	whole bool
}

type run struct{ file, dst, length int64 }

// target is a range of a file and the memory for its bytes.
type target struct {
	file int64
	to   []byte
}

func (t target) end() int64 { return t.file + int64(len(t.to)) }

// planSlice intersects a saved slice with the wanted range of the tensor. It returns nil if
// they share nothing. elem is the size of an element.
func planSlice(s *SliceInfo, elem int64, offset, shape []int64) *plan {
	dims := len(shape)
	from, n := make([]int64, dims), make([]int64, dims) // of the intersection
	for d := range dims {
		from[d] = max(s.Offset[d], offset[d])
		n[d] = min(s.Offset[d]+s.Shape[d], offset[d]+shape[d]) - from[d]
		if n[d] <= 0 {
			return nil
		}
	}
	p := &plan{file: s.Begin, run: elem}
	fileStep, dstStep := elem, elem // bytes from one index to the next, in dimension d
	merge := true                   // all dimensions below d are whole in both
	for d := dims - 1; d >= 0; d-- {
		p.file += (from[d] - s.Offset[d]) * fileStep
		p.dst += (from[d] - offset[d]) * dstStep
		if merge {
			p.run *= n[d]
			merge = n[d] == s.Shape[d] && n[d] == shape[d]
		} else {
			p.counts = append([]int64{n[d]}, p.counts...)
			p.fileStride = append([]int64{fileStep}, p.fileStride...)
			p.dstStride = append([]int64{dstStep}, p.dstStride...)
		}
		fileStep *= s.Shape[d]
		dstStep *= shape[d]
	}
	p.whole = p.run == fileStep
	return p
}

// each calls yield with the reads of the plan in order of file offset, until yield returns
// false. They fill dst, and read at most overRead of what they fill beyond it; see window.takes.
func (p *plan) each(dst []byte, overRead float64, yield func(window) bool) {
	var w window
	flush := func() bool {
		full := w
		w = window{}
		return len(full.targets) == 0 || yield(full)
	}
	p.runs(func(r run) bool {
		t := target{r.file, dst[r.dst : r.dst+r.length]}
		if r.length >= directRun {
			return flush() && direct(t, yield)
		}
		if !w.takes(t, overRead) && !flush() {
			return false
		}
		w.add(t)
		return true
	})
	flush()
}

// sums returns the checksums of the run in dst, to which reads add; nil if that is not all of a saved slice.
func (p *plan) sums(dst []byte) *crc.Sums {
	if !p.whole {
		return nil
	}
	return crc.NewSums(dst[p.dst : p.dst+p.run])
}

// direct reads a long range by itself, in pieces.
func direct(t target, yield func(window) bool) bool {
	for len(t.to) > 0 {
		n := min(int64(len(t.to)), readPiece)
		if !yield(window{targets: []target{{t.file, t.to[:n]}}, end: t.file + n, useful: n}) {
			return false
		}
		t.file, t.to = t.file+n, t.to[n:]
	}
	return true
}

// runs calls yield with each run in order of file offset.
func (p *plan) runs(yield func(run) bool) {
	index := make([]int64, len(p.counts))
	for {
		r := run{p.file, p.dst, p.run}
		for d, i := range index {
			r.file += i * p.fileStride[d]
			r.dst += i * p.dstStride[d]
		}
		if !yield(r) {
			return
		}
		d := len(index) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < p.counts[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}
