package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Encode returns everything of the file before its data: length field, JSON and padding. Its
// length is a multiple of Alignment and becomes DataStart. The same header always gives the
// same bytes. Tensors must be as Order leaves them.
func (h *Header) Encode() ([]byte, error) {
	if err := h.check(h.DataLen()); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(make([]byte, LengthBytes))
	b.WriteByte('{')
	if len(h.Metadata) > 0 {
		if err := writeMetadata(&b, h.Metadata); err != nil {
			return nil, err
		}
	}
	for i := range h.Tensors {
		if i > 0 || len(h.Metadata) > 0 {
			b.WriteByte(',')
		}
		if err := writeTensor(&b, &h.Tensors[i]); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	for b.Len()%Alignment != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-LengthBytes > MaxHeader {
		return nil, fmt.Errorf("a header of %d bytes; %d at most", b.Len()-LengthBytes, MaxHeader)
	}
	out := b.Bytes()
	binary.LittleEndian.PutUint64(out, uint64(len(out)-LengthBytes))
	h.DataStart = int64(len(out))
	return out, nil
}

func writeMetadata(b *bytes.Buffer, m map[string]string) error {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b.WriteString(`"` + metadataKey + `":{`)
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := writeString(b, k); err != nil {
			return err
		}
		b.WriteByte(':')
		if err := writeString(b, m[k]); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func writeTensor(b *bytes.Buffer, t *Tensor) error {
	if err := writeString(b, t.Name); err != nil {
		return err
	}
	b.WriteString(`:{"dtype":"`)
	b.WriteString(t.DType.String())
	b.WriteString(`","shape":`)
	writeInts(b, t.Shape)
	b.WriteString(`,"data_offsets":`)
	writeInts(b, []int64{t.Begin, t.End})
	b.WriteByte('}')
	return nil
}

func writeInts(b *bytes.Buffer, v []int64) {
	b.WriteByte('[')
	for i, n := range v {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(strconv.AppendInt(b.AvailableBuffer(), n, 10))
	}
	b.WriteByte(']')
}

// writeString refuses strings that Parse would read back differently.
func writeString(b *bytes.Buffer, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%q is not valid UTF-8", s)
	}
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the newline that Encode adds
	return nil
}
