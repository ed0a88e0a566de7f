package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// HeaderLen returns how many bytes come before the data section, including the length field,
// from the first LengthBytes bytes of a file. It fails on a length past MaxHeader.
func HeaderLen(first []byte) (int64, error) {
	if len(first) < LengthBytes {
		return 0, fmt.Errorf("a file of %d bytes has no header", len(first))
	}
	n := binary.LittleEndian.Uint64(first)
	if n > MaxHeader {
		return 0, fmt.Errorf("a header of %d bytes; %d at most", n, MaxHeader)
	}
	return int64(n) + LengthBytes, nil
}

// Parse reads a header. b must be exactly the first HeaderLen bytes of a file, and fileSize the
// size of the whole file. It refuses everything that the reference implementation refuses, and
// also duplicate names, unknown fields, and text that is not UTF-8. Parse of Encode's output
// gives the same Header.
func Parse(b []byte, fileSize int64) (*Header, error) {
	n, err := HeaderLen(b)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != n {
		return nil, fmt.Errorf("the header has %d bytes, its length field says %d", len(b), n)
	}
	if fileSize < n || fileSize > maxFile {
		return nil, fmt.Errorf("a file of %d bytes cannot hold a header of %d", fileSize, n)
	}
	s := scanner{b: b[LengthBytes:]}
	if !utf8.Valid(s.b) {
		return nil, fmt.Errorf("the header is not valid UTF-8")
	}
	if len(s.b) == 0 || s.b[0] != '{' {
		return nil, fmt.Errorf("the header does not begin with {")
	}
	h := &Header{DataStart: n}
	if err := s.header(h); err != nil {
		return nil, fmt.Errorf("header, byte %d: %w", s.at, err)
	}
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		if a.Begin != b.Begin {
			return cmp.Compare(a.Begin, b.Begin)
		}
		return cmp.Compare(a.End, b.End)
	})
	if err := h.check(fileSize - n); err != nil {
		return nil, err
	}
	return h, nil
}

// check compares sizes with types and shapes, and their sum with dataLen.
func (h *Header) check(dataLen int64) error {
	var at int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Name == metadataKey {
			return fmt.Errorf("a tensor cannot be named %s", metadataKey)
		}
		size, err := SizeOf(t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if t.Begin != at || t.End < t.Begin {
			return fmt.Errorf("tensor %q has bytes [%d, %d), but they must begin at %d", t.Name, t.Begin, t.End, at)
		}
		if t.Size() != size {
			return fmt.Errorf("tensor %q has %d bytes; %s of shape %v has %d", t.Name, t.Size(), t.DType, t.Shape, size)
		}
		at = t.End
	}
	if at != dataLen {
		return fmt.Errorf("the tensors have %d bytes, the data section has %d", at, dataLen)
	}
	return nil
}

// scanner reads the subset of JSON that a header uses.
type scanner struct {
	b  []byte
	at int
}

func (s *scanner) header(h *Header) error {
	seen := make(map[string]struct{})
	err := s.object(func(key string) error {
		if _, dup := seen[key]; dup {
			return fmt.Errorf("%q is listed twice", key)
		}
		seen[key] = struct{}{}
		if key == metadataKey {
			return s.metadata(h)
		}
		t := Tensor{Name: key}
		if err := s.tensor(&t); err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err != nil {
		return err
	}
	if s.space(); s.at != len(s.b) {
		return fmt.Errorf("the header has bytes after its JSON object")
	}
	return nil
}

func (s *scanner) metadata(h *Header) error {
	h.Metadata = make(map[string]string)
	return s.object(func(key string) error {
		if _, dup := h.Metadata[key]; dup {
			return fmt.Errorf("metadata key %q is listed twice", key)
		}
		v, err := s.str()
		h.Metadata[key] = v
		return err
	})
}

func (s *scanner) tensor(t *Tensor) error {
	var dtype, shape, offsets bool
	err := s.object(func(key string) error {
		switch {
		case key == "dtype" && !dtype:
			dtype = true
			name, err := s.str()
			if err != nil {
				return err
			}
			t.DType, err = ParseDType(name)
			return err
		case key == "shape" && !shape:
			shape = true
			var err error
			t.Shape, err = s.ints(MaxDims)
			return err
		case key == "data_offsets" && !offsets:
			offsets = true
			v, err := s.ints(2)
			if err == nil && len(v) != 2 {
				err = fmt.Errorf("data_offsets has %d numbers, not 2", len(v))
			}
			if err == nil {
				t.Begin, t.End = v[0], v[1]
			}
			return err
		}
		return fmt.Errorf("field %q is unknown or listed twice", key)
	})
	if err == nil && !(dtype && shape && offsets) {
		err = fmt.Errorf("dtype, shape or data_offsets is missing")
	}
	return err
}

func (s *scanner) space() {
	for s.at < len(s.b) && (s.b[s.at] == ' ' || s.b[s.at] == '\t' || s.b[s.at] == '\n' || s.b[s.at] == '\r') {
		s.at++
	}
}

// next skips space and returns the byte there without consuming it; 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.b) {
		return 0
	}
	return s.b[s.at]
}

func (s *scanner) expect(c byte) error {
	if s.next() != c {
		return fmt.Errorf("expected %q", c)
	}
	s.at++
	return nil
}

// object reads an object and calls field after each key's colon.
func (s *scanner) object(field func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.next() == '}' {
		s.at++
		return nil
	}
	for {
		key, err := s.str()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
		if s.next() != ',' {
			return s.expect('}')
		}
		s.at++
	}
}

func (s *scanner) str() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start, escaped := s.at, false
	for ; s.at < len(s.b) && s.b[s.at] != '"'; s.at++ {
		switch c := s.b[s.at]; {
		case c < 0x20:
			return "", fmt.Errorf("a control character in a string")
		case c == '\\':
			escaped = true
			s.at++
		}
	}
	if s.at >= len(s.b) {
		return "", fmt.Errorf("a string does not end")
	}
	s.at++
	raw := s.b[start : s.at-1]
	if !escaped {
		return string(raw), nil
	}
	var v string
	if err := json.Unmarshal(s.b[start-1:s.at], &v); err != nil {
		return "", err
	}
	// An escape of half a surrogate pair decodes to U+FFFD.
	if bytes.ContainsRune([]byte(v), utf8.RuneError) && !bytes.ContainsRune(raw, utf8.RuneError) {
		return "", fmt.Errorf("a string holds an escape that is no character")
	}
	return v, nil
}

// ints reads an array of at most limit numbers, each 0 or more.
func (s *scanner) ints(limit int) ([]int64, error) {
	if err := s.expect('['); err != nil {
		return nil, err
	}
	v := []int64{}
	if s.next() == ']' {
		s.at++
		return v, nil
	}
	for {
		n, err := s.number()
		if err != nil {
			return nil, err
		}
		if len(v) == limit {
			return nil, fmt.Errorf("an array of more than %d numbers", limit)
		}
		v = append(v, n)
		if s.next() != ',' {
			return v, s.expect(']')
		}
		s.at++
	}
}

func (s *scanner) number() (int64, error) {
	s.space()
	start := s.at
	var n int64
	for ; s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9'; s.at++ {
		d := int64(s.b[s.at] - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, fmt.Errorf("a number past 2^63")
		}
		n = n*10 + d
	}
	if s.at == start || (s.b[start] == '0' && s.at > start+1) {
		return 0, fmt.Errorf("expected a whole number, 0 or more")
	}
	return n, nil
}
