package record

const StepLeaseVersion = 1

func EncodeStepLease(times uint64) []byte { return PutUvarint([]byte{StepLeaseVersion}, times) }

func DecodeStepLease(b []byte) (times uint64, err error) {
	d := Dec{B: b}
	d.Version(StepLeaseVersion)
	times = d.Uvarint()
	return times, d.End("lease of a step")
}
