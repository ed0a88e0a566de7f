package record

import "encoding/binary"

// sessionAnswers is the version of the record of a session that keeps one answer in
// its record: most clients wait for each answer before they ask again, or nearly, and
// a key of its own for each is made by one command and taken away by the next.
//
//	version | length of what follows it, up to the answer (32 bits) | ... | answer, with its length
const sessionAnswers = 3

// sessionHead is what comes before the fields of such a record.
const sessionHead = 1 + 4

// answers is what a session knows of the answers that are kept for it.
type answers struct {
	Inside bool   // the record keeps one; else each has a key of its own
	Number uint64 // of the request whose answer is in the record, 0 for none
	Answer []byte // an encoded MetaResponse
	Apart  uint64 // how many have keys, where the record keeps one
}

// Encode ends the record b of a session, whose fields are all in it, with the answer.
func (a *answers) Encode(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[1:], uint32(len(b)-sessionHead))
	return PutBytes(b, a.Answer)
}

// decodeAnswer takes the answer off the end of the record, past the next n bytes.
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

// withoutAnswer returns the record of a session without the answer that it keeps.
func withoutAnswer(record []byte) []byte {
	if len(record) < sessionHead || record[0] != sessionAnswers {
		return record
	}
	n := sessionHead + int(binary.LittleEndian.Uint32(record[1:]))
	return record[:min(n, len(record))]
}
