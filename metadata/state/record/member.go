package record

import "github.com/morainefs/moraine"

const memberVersion = 1

func EncodeMember(dir moraine.UUID) []byte { return append([]byte{memberVersion}, dir[:]...) }

func DecodeMember(b []byte) (dir moraine.UUID, known bool, err error) {
	d := Dec{B: b}
	d.Version(memberVersion)
	for i := range dir {
		dir[i] = d.Byte()
	}
	return dir, true, d.End("member")
}
