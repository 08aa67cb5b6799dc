package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// checkBolt reads a bbolt file page by page, without mapping it, and refuses one that bbolt would fault or
// panic on, in goroutines of its own, where nothing can catch it. It checks what bbolt's own Check does:
// that each page is what its parent says, is reached once, lies inside the file and has its keys in order,
// and that no page in use is listed as free. Values are not its concern.
func checkBolt(path string) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	c := &boltCheck{file: file, size: info.Size(), used: make(map[uint64]bool)}
	if err := c.meta(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := c.free(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := c.tree(c.root, nil, nil, 0); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for id := range c.used {
		if c.freed[id] {
			return fmt.Errorf("%s: page %d is in use and listed as free", path, id)
		}
	}
	return nil
}

// The format of bbolt: pages of a header and elements, which say where in the page key and value are.
const (
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	boltNoFree    = ^uint64(0) // no list of free pages is kept
	boltHeader    = 16         // of a page: id 8, flags 2, count 2, overflow 4
	boltMetaBytes = 64
	boltElement   = 16 // of a branch: pos 4, ksize 4, page 8; of a leaf: flags 4, pos 4, ksize 4, vsize 4
	boltBranch    = 0x01
	boltLeaf      = 0x02
	boltFree      = 0x10
	boltMaxDepth  = 64
)

type boltCheck struct {
	file     *os.File
	size     int64
	pageSize int64
	root     uint64 // page of the root bucket
	freelist uint64
	pages    uint64 // ids are below
	used     map[uint64]bool
	freed    map[uint64]bool
}

// meta finds the valid meta page with the highest transaction, as bbolt does.
func (c *boltCheck) meta() error {
	first := c.metaAt(0)
	var second []byte
	if first != nil {
		second = c.metaAt(int64(binary.LittleEndian.Uint32(first[8:])))
	} else {
		for size := int64(1024); second == nil && size <= 16<<20; size *= 2 {
			second = c.metaAt(size)
		}
	}
	txid := func(m []byte) uint64 { return binary.LittleEndian.Uint64(m[48:]) }
	m := first
	if m == nil || second != nil && txid(second) > txid(m) {
		m = second
	}
	if m == nil {
		return errors.New("neither of its two meta pages is valid")
	}
	c.pageSize = int64(binary.LittleEndian.Uint32(m[8:]))
	c.root = binary.LittleEndian.Uint64(m[16:])
	c.freelist = binary.LittleEndian.Uint64(m[32:])
	c.pages = binary.LittleEndian.Uint64(m[40:])
	if c.pageSize < 1024 || c.pageSize > 16<<20 || c.pageSize&(c.pageSize-1) != 0 {
		return fmt.Errorf("its page size is %d", c.pageSize)
	}
	if c.pages > uint64(c.size/c.pageSize) {
		return fmt.Errorf("it has %d bytes, but %d pages of %d bytes are in use", c.size, c.pages, c.pageSize)
	}
	return nil
}

// metaAt is the meta data in a page, nil when it is not valid.
func (c *boltCheck) metaAt(offset int64) []byte {
	b := make([]byte, boltHeader+boltMetaBytes)
	if _, err := c.file.ReadAt(b, offset); err != nil {
		return nil
	}
	m := b[boltHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:boltMetaBytes-8]) // a hash does not fail
	if binary.LittleEndian.Uint32(m) != boltMagic || binary.LittleEndian.Uint32(m[4:]) != boltVersion ||
		binary.LittleEndian.Uint64(m[boltMetaBytes-8:]) != sum.Sum64() {
		return nil
	}
	return m
}

// page reads a page with its overflow, and marks it as used.
func (c *boltCheck) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.pages {
		return nil, fmt.Errorf("page %d is outside of the file", id)
	}
	header := make([]byte, boltHeader)
	offset := int64(id) * c.pageSize
	if _, err := c.file.ReadAt(header, offset); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := binary.LittleEndian.Uint64(header); got != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, got)
	}
	overflow := uint64(binary.LittleEndian.Uint32(header[12:]))
	if overflow >= c.pages-id {
		return nil, fmt.Errorf("page %d goes on beyond the end of the file", id)
	}
	for i := id; i <= id+overflow; i++ {
		if c.used[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		c.used[i] = true
	}
	b := make([]byte, (int64(overflow)+1)*c.pageSize)
	if _, err := io.ReadFull(io.NewSectionReader(c.file, offset, int64(len(b))), b); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// free reads the list of free pages, when one is kept.
func (c *boltCheck) free() error {
	if c.freelist == boltNoFree {
		return nil
	}
	b, err := c.page(c.freelist)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint16(b[8:]) != boltFree {
		return fmt.Errorf("page %d is not the list of free pages that it should be", c.freelist)
	}
	count, list := uint64(binary.LittleEndian.Uint16(b[10:])), b[boltHeader:]
	if count == 0xFFFF {
		count, list = binary.LittleEndian.Uint64(list), list[8:]
	}
	if count > uint64(len(list)/8) {
		return fmt.Errorf("page %d lists more free pages than fit", c.freelist)
	}
	c.freed = make(map[uint64]bool, count)
	for i := range count {
		id := binary.LittleEndian.Uint64(list[8*i:])
		if id < 2 || id >= c.pages || c.freed[id] {
			return fmt.Errorf("page %d lists page %d as free wrongly", c.freelist, id)
		}
		c.freed[id] = true
	}
	return nil
}

// tree checks a page and all below it, whose keys must lie in [low, high); nil is no bound.
func (c *boltCheck) tree(id uint64, low, high []byte, depth int) error {
	b, err := c.page(id)
	if err != nil {
		return err
	}
	return c.elements(id, b, low, high, depth)
}

func (c *boltCheck) elements(id uint64, b, low, high []byte, depth int) error {
	if depth > boltMaxDepth {
		return fmt.Errorf("page %d lies too deep", id)
	}
	flags, count := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	if flags != boltBranch && flags != boltLeaf {
		return fmt.Errorf("page %d is neither branch nor leaf", id)
	}
	if flags == boltBranch && count == 0 || boltHeader+count*boltElement > len(b) {
		return fmt.Errorf("page %d has %d elements", id, count)
	}
	keys, err := c.keys(id, b, flags, count)
	if err != nil {
		return err
	}
	for i, key := range keys {
		after := low
		if i > 0 {
			after = keys[i-1]
		}
		cmp := bytes.Compare(after, key)
		if after != nil && (cmp > 0 || i > 0 && cmp == 0) || high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("page %d has its keys out of order", id)
		}
	}
	for i, key := range keys {
		element := b[boltHeader+i*boltElement:]
		if flags == boltBranch {
			end := high
			if i+1 < len(keys) {
				end = keys[i+1]
			}
			if err := c.tree(binary.LittleEndian.Uint64(element[8:]), key, end, depth+1); err != nil {
				return err
			}
			continue
		}
		switch binary.LittleEndian.Uint32(element) {
		case 0:
		case 1:
			if err := c.bucket(id, valueOf(element), depth); err != nil {
				return err
			}
		default:
			return fmt.Errorf("page %d has an element of an unknown kind", id)
		}
	}
	return nil
}

// keys are the keys in a page, each of which, with its value, lies inside the page.
func (c *boltCheck) keys(id uint64, b []byte, flags uint16, count int) ([][]byte, error) {
	keys := make([][]byte, count)
	for i := range count {
		element := b[boltHeader+i*boltElement:]
		pos, ksize := binary.LittleEndian.Uint32(element), binary.LittleEndian.Uint32(element[4:])
		vsize := uint32(0)
		if flags == boltLeaf {
			pos, ksize = ksize, binary.LittleEndian.Uint32(element[8:])
			vsize = binary.LittleEndian.Uint32(element[12:])
		}
		end := uint64(pos) + uint64(ksize) + uint64(vsize)
		if end > uint64(len(element)) || int(pos) < (count-i)*boltElement {
			return nil, fmt.Errorf("page %d has an element outside of it", id)
		}
		keys[i] = element[pos : pos+ksize]
	}
	return keys, nil
}

// valueOf is the value of a leaf's element that has been checked.
func valueOf(element []byte) []byte {
	start := binary.LittleEndian.Uint32(element[4:]) + binary.LittleEndian.Uint32(element[8:])
	return element[start : start+binary.LittleEndian.Uint32(element[12:])]
}

// bucket checks a bucket in a leaf: its root page, or the page that it has inside.
func (c *boltCheck) bucket(id uint64, value []byte, depth int) error {
	if len(value) < 16 {
		return fmt.Errorf("page %d has a bucket that is too short", id)
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return c.tree(root, nil, nil, depth+1)
	}
	inside := value[16:]
	if len(inside) < boltHeader || binary.LittleEndian.Uint16(inside[8:]) != boltLeaf {
		return fmt.Errorf("page %d has a bucket that is damaged", id)
	}
	return c.elements(id, inside, nil, nil, depth+1)
}
