package ckpt

import (
	"encoding/hex"
	"math"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// text reads what it expects off b. After the first difference bad is true.
type text struct {
	b    []byte
	ints []int64 // room for arrays
	bad  bool
}

func (s *text) lit(want string) {
	if len(s.b) < len(want) || string(s.b[:len(want)]) != want {
		s.bad = true
		return
	}
	s.b = s.b[len(want):]
}

// has reads c, if it is next.
func (s *text) has(c byte) bool {
	if s.bad || len(s.b) == 0 || s.b[0] != c {
		return false
	}
	s.b = s.b[1:]
	return true
}

// until returns what is before c. It accepts no control character and no quote.
func (s *text) until(c byte) []byte {
	for i, x := range s.b {
		if x == c {
			v := s.b[:i]
			s.b = s.b[i:]
			return v
		}
		if x < ' ' || x == '"' {
			break
		}
	}
	s.bad = true
	return nil
}

func (s *text) number(limit int64) int64 {
	var n int64
	i := 0
	for ; i < len(s.b) && i < 18 && s.b[i]-'0' <= 9; i++ {
		n = n*10 + int64(s.b[i]-'0')
	}
	if i == 0 || (i > 1 && s.b[0] == '0') || n > limit || (i < len(s.b) && s.b[i]-'0' <= 9) {
		s.bad = true
		return 0
	}
	s.b = s.b[i:]
	return n
}

// array reads an array of numbers.
func (s *text) array() []int64 {
	first := len(s.ints)
	s.lit("[")
	if s.has(']') {
		return []int64{}
	}
	for !s.bad {
		s.ints = append(s.ints, s.number(math.MaxInt64))
		if s.has(']') {
			break
		}
		s.lit(",")
	}
	if len(s.ints)-first > safetensors.MaxDims {
		s.bad = true
	}
	return s.ints[first:len(s.ints):len(s.ints)]
}

func (s *text) digest() (d Digest) {
	const n = 2 * len(d)
	if len(s.b) < n {
		s.bad = true
		return d
	}
	if _, err := hex.Decode(d[:], s.b[:n]); err != nil {
		s.bad = true
	}
	s.b = s.b[n:]
	return d
}
