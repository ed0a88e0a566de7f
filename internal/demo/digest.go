package demo

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/morainefs/moraine/client/ckpt/safetensors"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/llama"
)

// readTensors reads a safetensors file of a size from the front, and passes each
// tensor to each.
func readTensors(r io.Reader, size int64, each func(t *safetensors.Tensor, data io.Reader) error) error {
	first := make([]byte, safetensors.LengthBytes)
	if _, err := io.ReadFull(r, first); err != nil {
		return err
	}
	n, err := safetensors.HeaderLen(first)
	if err != nil {
		return err
	}
	header := append(first, make([]byte, n-int64(len(first)))...)
	if _, err := io.ReadFull(r, header[len(first):]); err != nil {
		return err
	}
	h, err := safetensors.Parse(header, size)
	if err != nil {
		return err
	}
	for i := range h.Tensors { // they cover the data without a gap, in this order
		data := &io.LimitedReader{R: r, N: h.Tensors[i].Size()}
		if err := each(&h.Tensors[i], data); err != nil {
			return err
		}
		if data.N != 0 {
			return fmt.Errorf("tensor %s ends %d bytes early", h.Tensors[i].Name, data.N)
		}
	}
	return nil
}

// tensorDigests returns the SHA-256 of each tensor of a safetensors file.
func tensorDigests(r io.Reader, size int64) (map[string]string, error) {
	digests := map[string]string{}
	err := readTensors(r, size, func(t *safetensors.Tensor, data io.Reader) error {
		h := sha256.New()
		if _, err := io.CopyBuffer(h, data, make([]byte, copyBytes)); err != nil {
			return err
		}
		digests[t.Name] = fmt.Sprintf("%x", h.Sum(nil))
		return nil
	})
	return digests, err
}

const copyBytes = 1 << 20

// digestOf folds the digests of tensors into one, for people.
func digestOf(digests map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		fmt.Fprintln(h, name, digests[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// partSums checksums the tensors of a part as its rank did. at says where in each
// tensor the part's rows begin, and advances: parts come in order of rank.
func partSums(r io.Reader, size int64, at map[string]int64) ([]llama.Sum, error) {
	var sums []llama.Sum
	err := readTensors(r, size, func(t *safetensors.Tensor, data io.Reader) error {
		sum, buf := uint32(0), make([]byte, copyBytes)
		for {
			n, err := io.ReadFull(data, buf)
			sum = crc.Update(sum, buf[:n])
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				break
			}
			if err != nil {
				return err
			}
		}
		sums = append(sums, llama.Sum{Name: t.Name, Offset: at[t.Name], Len: t.Size(), CRC: sum})
		at[t.Name] += t.Size()
		return nil
	})
	return sums, err
}
