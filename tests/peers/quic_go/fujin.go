package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/quic-go/quic-go"
)

// Fujin as far as a benchmark needs it: WRITE without headers, and its result.
//
//	CONNECT WRITER   1, u32 id                  WRITE    3, cid, u32 and topic, u32 and message
//	                                            result   2, cid, 0
const (
	connectWriter = 1
	connectReader = 2
	push          = 1
	autoCommit    = 1
	message       = 6
	connectBytes  = 5
	write         = 3
	written       = 2
	resultBytes   = 6
	headBytes     = 9
)

// A reader that everything is pushed to, and a writer on another stream: all messages come, in order.
func reads(connection *quic.Conn, topic string, size, count int) error {
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	connect := []byte{connectReader, push, autoCommit}
	connect = binary.BigEndian.AppendUint32(connect, uint32(len(topic)))
	if _, err := stream.Write(append(connect, topic...)); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(stream, chunk)
	head := make([]byte, 5)
	if _, err := io.ReadFull(reader, head[:2]); err != nil {
		return err
	}
	if head[0] != 1 || head[1] != 0 {
		return fmt.Errorf("the reader was refused: %v", head[:2])
	}
	failed := make(chan error, 1)
	go func() { failed <- numbered(connection, topic, size, count) }()
	body := make([]byte, size)
	for number := 0; number < count; number++ {
		if _, err := io.ReadFull(reader, head); err != nil {
			return err
		}
		if head[0] != message || binary.BigEndian.Uint32(head[1:]) != uint32(size) {
			return fmt.Errorf("message %d begins with %v", number, head)
		}
		if _, err := io.ReadFull(reader, body); err != nil {
			return err
		}
		if binary.BigEndian.Uint32(body) != uint32(number) {
			return fmt.Errorf("message %d is %v", number, body[:4])
		}
	}
	fmt.Printf("%d messages in order\n", count)
	return <-failed
}

// Writes messages that begin with their number, and reads the results.
func numbered(connection *quic.Conn, topic string, size, count int) error {
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	commands := []byte{connectWriter, 0, 0, 0, 0}
	for number := 0; number < count; number++ {
		commands = append(commands, write)
		commands = binary.BigEndian.AppendUint32(commands, uint32(number))
		commands = binary.BigEndian.AppendUint32(commands, uint32(len(topic)))
		commands = append(commands, topic...)
		commands = binary.BigEndian.AppendUint32(commands, uint32(size))
		commands = binary.BigEndian.AppendUint32(commands, uint32(number))
		commands = append(commands, make([]byte, size-4)...)
	}
	if _, err := stream.Write(commands); err != nil {
		return err
	}
	_, err = io.ReadFull(stream, make([]byte, count*resultBytes))
	return err
}

// A ping is a stream of the server: who ends the other side lives.
func answerPings(connection *quic.Conn) {
	for {
		stream, err := connection.AcceptStream(contextOfRun)
		if err != nil {
			return
		}
		stream.Close()
	}
}

// Many messages to one topic on one stream; the time is over when the last result is there.
func writes(connection *quic.Conn, topic string, size, count int) error {
	go answerPings(connection)
	stream, err := connection.OpenStreamSync(contextOfRun)
	if err != nil {
		return err
	}
	if _, err := stream.Write([]byte{connectWriter, 0, 0, 0, 0}); err != nil {
		return err
	}
	each := headBytes + len(topic) + 4 + size
	inBlock := max(chunk/each, 1)
	payloads := random(inBlock * size)
	failed := make(chan error, 1)
	begin := time.Now()
	go func() {
		block := make([]byte, 0, inBlock*each)
		for sent := 0; sent < count; {
			block = block[:0]
			for number := 0; number < inBlock && sent < count; number++ {
				block = append(block, write)
				block = binary.BigEndian.AppendUint32(block, uint32(sent))
				block = binary.BigEndian.AppendUint32(block, uint32(len(topic)))
				block = append(block, topic...)
				block = binary.BigEndian.AppendUint32(block, uint32(size))
				block = append(block, payloads[number*size:(number+1)*size]...)
				sent++
			}
			if _, err := stream.Write(block); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	reader := bufio.NewReaderSize(stream, chunk)
	result := make([]byte, resultBytes)
	for found := 0; found < count; found++ {
		if _, err := io.ReadFull(reader, result); err != nil {
			return err
		}
		if result[0] != written || result[5] != 0 || binary.BigEndian.Uint32(result[1:]) != uint32(found) {
			return fmt.Errorf("result %d: %v", found, result)
		}
	}
	seconds := time.Since(begin).Seconds()
	if err := <-failed; err != nil {
		return err
	}
	rate := float64(count) / seconds
	fmt.Printf("%.1f MB/s %.0f messages/s\n", rate*float64(size)/1e6, rate)
	return stream.Close()
}

// Bytes that do not repeat soon: a linear congruence.
func random(size int) []byte {
	state := uint64(0x2545f4914f6cdd1d)
	made := make([]byte, size)
	for place := range made {
		state = state*6364136223846793005 + 1442695040888963407
		made[place] = byte(state >> 56)
	}
	return made
}

// Of the sink: every WRITE gets its result.
func answerWrites(stream *quic.Stream, rest []byte) error {
	buffer := make([]byte, 4*chunk)
	var answers []byte
	for {
		for {
			size := answerWrite(rest, &answers)
			if size < 0 {
				return fmt.Errorf("not a WRITE but %d", rest[0])
			}
			if size == 0 {
				break
			}
			rest = rest[size:]
		}
		if len(answers) > 0 {
			if _, err := stream.Write(answers); err != nil {
				return err
			}
			answers = answers[:0]
		}
		found, err := stream.Read(buffer)
		rest = append(bytes.Clone(rest), buffer[:found]...)
		if err == io.EOF {
			return stream.Close()
		}
		if err != nil {
			return err
		}
	}
}

// The size of the WRITE that data begins with, 0 while it is cut off, -1 if it is none.
func answerWrite(data []byte, answers *[]byte) int {
	if len(data) < headBytes {
		return 0
	}
	if data[0] != write {
		return -1
	}
	value := headBytes + int(binary.BigEndian.Uint32(data[5:]))
	if len(data) < value+4 {
		return 0
	}
	end := value + 4 + int(binary.BigEndian.Uint32(data[value:]))
	if len(data) < end {
		return 0
	}
	*answers = append(append(append(*answers, written), data[1:5]...), 0)
	return end
}
