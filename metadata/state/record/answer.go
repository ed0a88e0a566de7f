package record

import "encoding/binary"

// sessionHead is the size of what precedes the fields of a session record, in bytes. The record
// contains one answer. Most clients wait for an answer before the next request, so a key for each
// answer would be written by one command and deleted by the next.
//
//	version | length of the fields up to the answer (32 bits) | ... | answer, with its length
const sessionHead = 1 + 4

// answers says where a session's kept answers are.
type answers struct {
	Number uint64 // number of the request answered in the record; 0 if none
	Answer []byte // an encoded MetaResponse
	Apart  uint64 // number of answers with a key of their own
}

// Encode appends the answer to b, the session record with all its other fields.
func (a *answers) Encode(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-sessionHead))
	return putBytes(b, a.Answer)
}

// decodeAnswer removes the answer from the end of the record; it follows the next n bytes.
func (d *Dec) decodeAnswer(n int) []byte {
	if d.Err != nil || n > len(d.B) {
		d.fail(errShort)
		return nil
	}
	end := Dec{B: d.B[n:]}
	answer := end.bytes()
	if err := end.End("answer"); err != nil {
		d.fail(err)
		return nil
	}
	d.B = d.B[:n]
	return answer
}

// withoutAnswer returns a session record without its answer.
func withoutAnswer(record []byte) []byte {
	if len(record) < sessionHead {
		return record
	}
	n := sessionHead + int(binary.LittleEndian.Uint32(record[1:]))
	return record[:min(n, len(record))]
}
