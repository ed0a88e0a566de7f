package s3

// What tests of formats need.

type Record = record

var DecodeRecord = decodeRecord

func EncodeRecord(r Record) ([]byte, error) { return r.encode() }

const RecordXattr = recordXattr
