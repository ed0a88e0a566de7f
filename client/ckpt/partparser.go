package ckpt

import (
	"bytes"
	"encoding/json"
	"math"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// partParser reads the headers of parts, one after the other. It has a fast path for the form that
// this package writes: one pass over the bytes, without decoding the JSON that is in strings of the
// JSON. Headers of another form go through parseAnyPart, which also finds the words for what is
// wrong. Both accept only what safetensors.Parse accepts. The zero value is ready.
type partParser struct {
	names map[string]string // one string for each name
	// listed are the tensors as the metadata lists them, in order of name. order has where the tensors
	// of the header before were in that list: the next header mostly has the same.
	listed []listedTensor
	order  []int
	dtypes map[string]DType
}

type listedTensor struct {
	name           string
	offset, global []int64
	digest         Digest
	used           bool
}

// parse reads the header of a part's file. b is everything before the data. The result has no part
// of b.
func (p *partParser) parse(b []byte, fileSize int64) (*partHeader, error) {
	if n, err := safetensors.HeaderLen(b); err == nil && n == int64(len(b)) && fileSize >= n && utf8.Valid(b[safetensors.LengthBytes:]) {
		if h := p.fast(b[safetensors.LengthBytes:], n, fileSize-n); h != nil {
			h.root = headerRoot(b)
			return h, nil
		}
	}
	return parseAnyPart(b, fileSize)
}

// literals of the form that this package writes. The metadata is sorted by key.
const (
	openSlices  = `{"__metadata__":{"` + keySlices + `":"{`
	openVersion = `","` + keyVersion + `":"` + dcpVersion + `","` + keyPart + `":"{\"version\":1,\"run\":\"`
	closeMeta   = `","` + keyFormat + `":"` + formatTorch + `"}`
)

// fast returns nil for a header of another form.
func (p *partParser) fast(b []byte, dataStart, dataLen int64) *partHeader {
	s := text{b: b, ints: make([]int64, 0, 3*cap(p.listed)*4)}
	h := &partHeader{}
	p.listed = p.listed[:0]
	s.lit(openSlices)
	p.slices(&s)
	s.lit(openVersion)
	h.meta.Version, h.meta.Run = partVersion, string(s.until('\\'))
	s.lit(`\",\"attempt\":`)
	h.meta.Attempt = uint32(s.number(math.MaxUint32))
	s.lit(`,\"step\":`)
	h.meta.Step = uint64(s.number(math.MaxInt64))
	s.lit(`,\"rank\":`)
	h.meta.Rank = uint32(s.number(math.MaxUint32))
	s.lit(`,\"world\":`)
	h.meta.World = uint32(s.number(math.MaxUint32))
	s.lit(`,\"file\":`)
	h.meta.File = int(s.number(math.MaxInt32))
	s.lit(`,\"tensors\":{`)
	p.tensors(&s)
	h.rest(&s)
	s.lit(closeMeta)
	h.slices = make([]partSlice, len(p.listed))
	p.stored(&s, h.slices, dataStart, dataLen)
	s.lit("}")
	if s.bad || len(bytes.TrimLeft(s.b, " ")) != 0 {
		return nil
	}
	return h
}

// slices reads the offsets of all tensors. They are in order of name.
func (p *partParser) slices(s *text) {
	if s.has('}') {
		return
	}
	for !s.bad {
		s.lit(`\"`)
		t := listedTensor{name: p.name(s.until('\\'), len(p.listed))}
		s.lit(`\":{\"saved_offsets\":`)
		t.offset = s.array()
		s.lit(`}`)
		if n := len(p.listed); n > 0 && p.listed[n-1].name >= t.name {
			s.bad = true
		}
		p.listed = append(p.listed, t)
		if s.has('}') {
			return
		}
		s.lit(",")
	}
}

// tensors reads shapes and digests. They are in the order of the offsets.
func (p *partParser) tensors(s *text) {
	for i := range p.listed {
		t := &p.listed[i]
		if i > 0 {
			s.lit(",")
		}
		s.lit(`\"`)
		s.lit(t.name)
		s.lit(`\":{\"global\":`)
		t.global = s.array()
		s.lit(`,\"digest\":\"`)
		t.digest = s.digest()
		s.lit(`\"}`)
		if s.bad {
			return
		}
	}
	s.lit("}")
}

// rest reads blobs and shared slices, which few headers have.
func (h *partHeader) rest(s *text) {
	if s.bad || s.has('}') {
		return
	}
	end := bytes.Index(s.b, []byte(closeMeta))
	if end < 1 || s.b[0] != ',' {
		s.bad = true
		return
	}
	var decoded string
	var meta struct {
		Blobs  map[string]blobMeta `json:"blobs"`
		Shared []sharedMeta        `json:"shared"`
	}
	quoted := append(append([]byte(`"{`), s.b[1:end]...), '"')
	if json.Unmarshal(quoted, &decoded) != nil {
		s.bad = true
		return
	}
	d := json.NewDecoder(strings.NewReader(decoded))
	d.DisallowUnknownFields()
	if d.Decode(&meta) != nil || d.More() {
		s.bad = true
		return
	}
	h.meta.Blobs, h.meta.Shared = meta.Blobs, meta.Shared
	for i := range meta.Shared {
		slice, err := meta.Shared[i].slice()
		if err != nil {
			s.bad = true
			return
		}
		h.shared = append(h.shared, slice)
	}
	s.b = s.b[end:]
}

// stored reads the tensors of the file, in order of their bytes.
func (p *partParser) stored(s *text, out []partSlice, dataStart, dataLen int64) {
	var at int64
	for i := range out {
		s.lit(`,"`)
		t := p.find(s, i)
		s.lit(`":{"dtype":"`)
		dtype := p.dtype(s.until('"'))
		s.lit(`","shape":`)
		shape := s.array()
		s.lit(`,"data_offsets":[`)
		begin := s.number(math.MaxInt64)
		s.lit(",")
		end := s.number(math.MaxInt64)
		s.lit("]}")
		if s.bad || t == nil {
			s.bad = true
			return
		}
		size, err := safetensors.SizeOf(dtype, shape)
		if err == nil {
			_, err = safetensors.SizeOf(dtype, t.global)
		}
		if err != nil || begin != at || end-begin != size || checkSlice(t.global, t.offset, shape) != nil {
			s.bad = true
			return
		}
		at = end
		out[i] = partSlice{Name: t.name, DType: dtype, Global: t.global, Offset: t.offset, Shape: shape, Begin: dataStart + begin, Digest: t.digest}
	}
	s.bad = s.bad || at != dataLen
}

// find reads the name of the i-th tensor, and returns what the metadata says of it.
func (p *partParser) find(s *text, i int) *listedTensor {
	name := s.until('"')
	n := -1
	if i < len(p.order) && p.order[i] < len(p.listed) && p.listed[p.order[i]].name == string(name) {
		n = p.order[i]
	} else {
		n = sort.Search(len(p.listed), func(n int) bool { return p.listed[n].name >= string(name) })
	}
	if n == len(p.listed) || p.listed[n].used || string(name) == "__metadata__" || p.listed[n].name != string(name) || bytes.IndexByte(name, '\\') >= 0 {
		return nil
	}
	if i < len(p.order) {
		p.order[i] = n
	} else {
		p.order = append(p.order, n)
	}
	p.listed[n].used = true
	return &p.listed[n]
}

// name returns the one string of a name, which is probably that of the i-th tensor before.
func (p *partParser) name(b []byte, i int) string {
	if old := p.listed[:cap(p.listed)]; i < len(old) && old[i].name == string(b) {
		return old[i].name
	}
	if p.names == nil {
		p.names = make(map[string]string)
	}
	name, ok := p.names[string(b)]
	if !ok {
		if len(p.names) == maxNames {
			clear(p.names)
		}
		name = string(b)
		p.names[name] = name
	}
	return name
}

// maxNames bounds the names that a parser remembers.
const maxNames = 1 << 16

func (p *partParser) dtype(b []byte) DType {
	if d, ok := p.dtypes[string(b)]; ok {
		return d
	}
	d, err := safetensors.ParseDType(string(b))
	if err != nil {
		return 0 // SizeOf refuses it
	}
	if p.dtypes == nil {
		p.dtypes = make(map[string]DType)
	}
	p.dtypes[string(b)] = d
	return d
}
