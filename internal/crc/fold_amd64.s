#include "textflag.h"

// func fold(state uint32, p *byte, n int, k *foldTable) uint32
//
// Z0 to Z3 hold 256 bytes. Each round multiplies them by x^2048 modulo the polynomial, as four
// times four lanes of 128 bits, and adds the next 256 bytes. The lanes then become one, whose
// 16 bytes have the same remainder as everything before them. Two CRC32Q compute it.
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL state+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ k+24(FP), DI

	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD     AX, X4
	VPXORQ    Z4, Z0, Z0
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 (DI), Z16
	CMPQ            CX, $256
	JLT             join

round:
	PREFETCHT0  2048(SI)
	PREFETCHT0  2112(SI)
	PREFETCHT0  2176(SI)
	PREFETCHT0  2240(SI)
	VPCLMULQDQ  $0x00, Z16, Z0, Z4
	VPCLMULQDQ  $0x11, Z16, Z0, Z0
	VPCLMULQDQ  $0x00, Z16, Z1, Z5
	VPCLMULQDQ  $0x11, Z16, Z1, Z1
	VPCLMULQDQ  $0x00, Z16, Z2, Z6
	VPCLMULQDQ  $0x11, Z16, Z2, Z2
	VPCLMULQDQ  $0x00, Z16, Z3, Z7
	VPCLMULQDQ  $0x11, Z16, Z3, Z3
	VPTERNLOGQ  $0x96, (SI), Z4, Z0
	VPTERNLOGQ  $0x96, 64(SI), Z5, Z1
	VPTERNLOGQ  $0x96, 128(SI), Z6, Z2
	VPTERNLOGQ  $0x96, 192(SI), Z7, Z3
	ADDQ        $256, SI
	SUBQ        $256, CX
	CMPQ        CX, $256
	JGE         round

join:
	// Z0 by x^1536, Z1 by x^1024 and Z2 by x^512, all into Z3.
	VBROADCASTI32X4 16(DI), Z17
	VBROADCASTI32X4 32(DI), Z18
	VBROADCASTI32X4 48(DI), Z16
	VPCLMULQDQ      $0x00, Z17, Z0, Z4
	VPCLMULQDQ      $0x11, Z17, Z0, Z0
	VPCLMULQDQ      $0x00, Z18, Z1, Z5
	VPCLMULQDQ      $0x11, Z18, Z1, Z1
	VPCLMULQDQ      $0x00, Z16, Z2, Z6
	VPCLMULQDQ      $0x11, Z16, Z2, Z2
	VPTERNLOGQ      $0x96, Z0, Z4, Z3
	VPTERNLOGQ      $0x96, Z1, Z5, Z3
	VPTERNLOGQ      $0x96, Z2, Z6, Z3

	CMPQ CX, $64
	JLT  lanes

single:
	VPCLMULQDQ $0x00, Z16, Z3, Z4
	VPCLMULQDQ $0x11, Z16, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z4, Z3
	ADDQ       $64, SI
	SUBQ       $64, CX
	CMPQ       CX, $64
	JGE        single

lanes:
	// The first lane by x^384, the second by x^256, the third by x^128, all into the fourth.
	VMOVDQU64      64(DI), Z16
	VPCLMULQDQ     $0x00, Z16, Z3, Z4
	VPCLMULQDQ     $0x11, Z16, Z3, Z5
	VPXORQ         Z4, Z5, Z5
	VEXTRACTI32X4  $3, Z3, X0
	VEXTRACTI64X4  $1, Z5, Y6
	VPXORQ         Y5, Y6, Y5
	VEXTRACTI128   $1, Y5, X6
	VPTERNLOGQ     $0x96, X5, X6, X0
	XORL           AX, AX
	VMOVQ          X0, DX
	VPEXTRQ        $1, X0, BX
	CRC32Q         DX, AX
	CRC32Q         BX, AX
	VZEROUPPER
	MOVL           AX, ret+32(FP)
	RET
